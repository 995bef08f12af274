"""Functions that the tests submit; each is shipped from this file as a notebook's would be from its cell."""


def fine_tunes(parameters):
    from datasets.distributed import split_dataset_by_node
    from transformers import TrainingArguments

    from train_func.worker import Session, Trainer

    with Session(parameters) as session:
        model, tokenizer = session.model()
        train, held_out = session.data(tokenizer)
        plan = split_dataset_by_node(session.plan(train), session.rank, session.world_size)
        arguments = TrainingArguments(
            **session.arguments, num_train_epochs=parameters["epochs"], learning_rate=parameters["learning_rate"]
        )
        trainer = Trainer(
            model=model, args=arguments, train_dataset=plan, eval_dataset=held_out, processing_class=tokenizer
        )
        trainer.train()
        session.publish(trainer)


def only_meets(parameters):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.ones(1)
    for _ in range(20):
        dist.all_reduce(total)
    print(f"rank {dist.get_rank()} of {dist.get_world_size()} met the others", flush=True)


def waits_for_a_file(parameters):
    import time
    from pathlib import Path

    print("waiting", flush=True)
    while not Path(parameters["file"]).exists():
        time.sleep(0.05)
    print("the file is there", flush=True)


def misspells(parameters):
    import os

    rank = int(os.environ["RANK"])
    if rank == 1:
        [].apend(rank)
    only_meets(parameters)


def imports_what_is_missing(parameters):
    import importlib

    importlib.import_module("a_package_nobody_has")


def kills_itself(parameters):
    """SIGKILL to rank 1, as often as ``parameters["times"]`` says, counted by files."""
    import os
    import signal
    from pathlib import Path

    done = len(list(Path(parameters["folder"]).iterdir()))
    if int(os.environ["RANK"]) == 1 and done < parameters["times"]:
        (Path(parameters["folder"]) / str(done)).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    only_meets(parameters)


def needs_much_memory(parameters):
    hoard = []
    while True:
        hoard.append(bytearray(64 * 2**20))


def ends_with(parameters):
    import sys

    sys.exit(parameters["code"])


def loads_each(parameters):
    """Every further source in the job's folder, by the worker's own loader; each must return what it should."""
    import dataclasses
    import hashlib
    import json
    import os
    from pathlib import Path

    from train_func.run import RunRecord
    from train_func.worker.pod import shipment

    folder, work = Path(os.environ["TRAIN_FUNC_JOB_DIR"]), Path(os.environ["TRAIN_FUNC_WORK_DIR"])
    record = RunRecord.from_parameters(parameters)
    wanted = json.loads((folder / "wanted.json").read_text())
    for name, (sha256, returned) in wanted.items():
        (work / "source.py").write_bytes((folder / name).read_bytes())
        own = dataclasses.replace(record, source_sha256=sha256, function="train_func")
        values = shipment.load(work, None, own)({})
        assert hashlib.sha256(repr(values).encode(errors="surrogatepass")).hexdigest() == returned, name
    print(f"{len(wanted)} sources arrived and work", flush=True)
