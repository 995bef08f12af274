"""Functions that the tests submit; each is shipped from this file as a notebook's would be from its cell."""


def fine_tunes(parameters):
    """The function of any task; a score that it is given comes back, so that a test says which model is better."""
    from datasets.distributed import split_dataset_by_node
    from transformers import TrainingArguments

    from train_func.worker import Session, Trainer

    with Session(parameters) as session:
        model, processor = session.model()
        train, held_out = session.data(processor)
        plan = split_dataset_by_node(session.plan(train), session.rank, session.world_size)
        arguments = TrainingArguments(**session.arguments())
        trainer = Trainer(
            model=model, args=arguments, train_dataset=plan, eval_dataset=held_out, processing_class=processor
        )
        trainer.train()
        session.publish(trainer)
    return {name: parameters[name] for name in ("score",) if name in parameters}


def misjudges(prediction):
    return {"right": prediction.no_such_field}


def measures_wrongly(parameters):
    """Of few rows first, and then of all."""
    from datasets.distributed import split_dataset_by_node
    from transformers import TrainingArguments

    from train_func.worker import Session, Trainer

    with Session(parameters) as session:
        model, tokenizer = session.model()
        train, held_out = session.data(tokenizer)
        plan = split_dataset_by_node(session.plan(train), session.rank, session.world_size)
        arguments = TrainingArguments(**session.arguments(eval_strategy="epoch", per_device_eval_batch_size=2))
        data = {"train_dataset": plan, "eval_dataset": held_out, "processing_class": tokenizer}
        trainer = Trainer(model, arguments, compute_metrics=misjudges, **data)
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


def waits_in_each_attempt(parameters):
    """For a file with the number of the attempt; the first one is killed then."""
    import os
    import signal
    import time
    from pathlib import Path

    folder = Path(parameters["folder"])
    number = 1 + len([*folder.glob("begun-*")])
    (folder / f"begun-{number}").touch()
    print(f"attempt {number} waits", flush=True)
    while not (folder / str(number)).exists():
        time.sleep(0.05)
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"attempt": number}


def misspells(parameters):
    import os
    import signal

    rank = int(os.environ["RANK"])
    if rank == 1:
        [].apend(rank)
    signal.pause()


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


def loads_twice(parameters):
    """Says what it has loaded; its first attempt waits for a file before, and is killed after that."""
    import hashlib
    import os
    import signal
    import time
    from pathlib import Path

    from datasets.distributed import split_dataset_by_node
    from transformers import TrainingArguments

    from train_func.worker import Session, Trainer

    with Session(parameters) as session:
        while not Path(parameters["file"]).exists():
            time.sleep(0.05)
        model, tokenizer = session.model()
        train, held_out = session.data(tokenizer)
        weights = model.bert.embeddings.word_embeddings.weight.detach().numpy()
        print(f"loaded {hashlib.sha256(weights.tobytes()).hexdigest()} {len(train) + len(held_out)} rows", flush=True)
        if session.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        plan = split_dataset_by_node(session.plan(train), session.rank, session.world_size)
        arguments = TrainingArguments(**session.arguments())
        trainer = Trainer(model=model, args=arguments, train_dataset=plan, processing_class=tokenizer)
        trainer.train()
        session.publish(trainer)


def needs_much_memory(parameters):
    hoard = []
    while True:
        hoard.append(bytearray(64 * 2**20))


def fails_at(parameters):
    """A loop of its own over so many rows, which fails in one step; 0: in the first that it does; -1: in none.

    ``diverges``: its weights are no numbers from that step on.
    """
    import torch
    from datasets import Dataset
    from datasets.distributed import split_dataset_by_node

    from train_func.worker import Session

    with Session(parameters) as session:
        rows = Dataset.from_dict({"x": [[float(number)] for number in range(parameters.get("rows", 40))]})
        plan = split_dataset_by_node(session.plan(rows), session.rank, session.world_size)
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        session.checkpoint(model, optimizer)
        for step in session.steps(plan):
            print(f"step {step.number} of {parameters['fails']}", flush=True)
            if parameters["fails"] in (0, step.number):
                if not parameters.get("diverges"):
                    raise ValueError("a mistake")
                model.weight.data.fill_(float("nan"))
            for batch, weight in step:
                (weight * model(batch["x"]).square().mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
        session.publish(model)


def grows_and_waits(parameters):
    """Holds so many bytes with all processes of its worker but the supervisor, and waits to be ended."""
    import signal

    import psutil

    from train_func.process.process_tree import unreclaimable_bytes

    supervisor, hoard = psutil.Process().parent(), []
    while unreclaimable_bytes([of.pid for of in supervisor.children(recursive=True)]) <= parameters["bytes"]:
        hoard.append(bytearray(b"x") * 2**22)
    signal.pause()


def ends_with(parameters):
    """Ends rank 0, which has recorded its attempt by then; the others wait until their worker is ended."""
    import os
    import signal
    import sys

    if os.environ["RANK"] != "0":
        signal.pause()
    sys.exit(parameters["code"])


def trains_alone(parameters):
    """Every rank by itself, although there are several; with ``in_a_group`` in one that is left before the end."""
    import torch
    import torch.distributed as dist

    if parameters["in_a_group"]:
        dist.init_process_group("gloo")
        dist.destroy_process_group()
    assert torch.ones(1).sum() == 1


def ends_before_the_others_have_met_it(parameters):
    """Rank 0 returns at once, while rank 1 still reads the store, as it does in gloo's own code on a busy machine."""
    import os
    import time

    import torch.distributed as dist

    c10d = dist.distributed_c10d
    register = c10d._register_process_group

    def register_late(name, group):
        _, store = c10d._world.pg_map[group]
        time.sleep(1.5)
        store.add("read late", 1)
        register(name, group)

    if os.environ["RANK"] == "1":
        c10d._register_process_group = register_late
    dist.init_process_group("gloo")
    return {"world_size": dist.get_world_size()}


def lets_groups_go(parameters):
    """Leaves one group after another right after a collective, and then lets the last model go that knew it."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    for step in range(parameters["groups"]):
        group = dist.new_group()
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2), process_group=group)
        model(torch.ones(1, 2)).sum().backward()
        gathered = [torch.zeros(1) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, torch.full((1,), float(step)), group=group)
        dist.destroy_process_group(group)
        del gathered, group
        del model
    print(f"let {step + 1} groups go", flush=True)


def meets_again(parameters):
    """Groups one behind the other, to each of which one rank comes late; before the first, rank 0 forms one alone."""
    import os
    import tempfile
    import time

    import torch
    import torch.distributed as dist

    total = torch.ones(1)
    if os.environ["RANK"] == "0":
        alone = f"file://{tempfile.mkdtemp()}/store"
        dist.init_process_group("gloo", init_method=alone, rank=0, world_size=1)
        dist.destroy_process_group()
    for group in range(3):
        if os.environ["RANK"] == str(group % 2):
            time.sleep(1.5)
        dist.init_process_group("gloo")
        dist.all_reduce(total)
        dist.destroy_process_group()
    return {"total": total.item()}


def takes_the_root_of_zero(rank, step):
    """On one rank, in one step: the loss is finite, and its gradients are not."""
    import torch
    from datasets import Dataset
    from datasets.distributed import split_dataset_by_node

    from train_func.worker import Session

    with Session() as session:
        rows = Dataset.from_dict({"x": [[float(i)] for i in range(12)]})
        plan = split_dataset_by_node(session.plan(rows), session.rank, session.world_size)
        net = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
        for of in session.steps(plan):
            for batch, weight in of:
                loss = net(batch["x"]).square().mean()
                if (session.rank, of.number) == (rank, step):
                    loss = loss + (net.weight - net.weight.detach()).sum().sqrt()
                (weight * loss).backward()
            optimizer.step()
            optimizer.zero_grad()
        session.publish(net)


def tells_its_steps(parameters):
    """A loop of its own that tells the loss of each step, and saves as often as the run asks for."""
    import time

    import torch
    from datasets import Dataset
    from datasets.distributed import split_dataset_by_node
    from torch.nn.parallel import DistributedDataParallel

    from train_func.worker import Session

    with Session(parameters) as session:
        x = torch.randn(parameters.get("rows", 40), 3, generator=torch.Generator().manual_seed(0))
        rows = Dataset.from_dict({"x": x.numpy(), "y": x.sum(1).numpy()})
        plan = split_dataset_by_node(session.plan(rows), session.rank, session.world_size)
        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Linear(3, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        session.checkpoint(model, optimizer)
        for step in session.steps(plan):
            total = 0.0
            for batch, weight in step:
                loss = weight * torch.nn.functional.mse_loss(model(batch["x"]).squeeze(1), batch["y"])
                loss.backward()
                total += loss.item()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(parameters["pause"])
            session.report(step.number, loss=total)
        session.publish(model)


def is_slow_on_rank_1(parameters):
    """A loop of its own whose rank 1 sleeps, ``in_data`` while it loads the rows of each step, or else in the step."""
    import time

    import torch
    from datasets import Dataset
    from datasets.distributed import split_dataset_by_node

    from train_func.worker import Session

    with Session(parameters) as session:
        rows = Dataset.from_dict({"x": [[float(number)] for number in range(4 * parameters["steps"])]})
        plan = split_dataset_by_node(session.plan(rows), session.rank, session.world_size)
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-7)

        def collate(rows):
            if session.rank == 1 and parameters["in_data"]:
                time.sleep(parameters["sleeps"])
            return {"x": torch.tensor([row["x"] for row in rows])}

        for step in session.steps(plan, collate):
            for batch, weight in step:
                (weight * model(batch["x"]).square().mean()).backward()
                if session.rank == 1 and not parameters["in_data"]:
                    time.sleep(parameters["sleeps"])
            optimizer.step()
            optimizer.zero_grad()
        session.publish(model)
