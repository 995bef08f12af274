"""Functions that fail on a drawn rank in a drawn step, each in its own way; the other ranks wait meanwhile.

``parameters`` has the rank, the step and how it fails; ``times``: in how many attempts, by default in one.
"""

import importlib
import os
import resource
import signal
import sys
import time
from pathlib import Path

LOG = sys.stderr


def fails(how, **values):
    """Does what is to happen to this rank."""
    match how:
        case "raises":
            raise ValueError("a mistake")
        case "misspells":
            [].apend(1)
        case "lacks a module":
            importlib.import_module("no_such_module")
        case "exits":
            sys.exit(3)
        case "leaves":
            os._exit(3)
        case "dies":
            os.kill(os.getpid(), values["signal"])
        case "asks for much":
            resource.setrlimit(resource.RLIMIT_AS, (2**32, 2**32))
            bytearray(2**33)
        case "asks for all at once":  # faster than the supervisor sees
            bytearray(b"x" * 2**30)
            signal.pause()
        case "hoards":
            hoard = []
            while True:
                hoard.append(bytearray(b"x" * 2**22))
        case "fills the disk":
            with open("/dev/full", "wb") as file:  # noqa: PTH123 - ENOSPC, as of a disk
                file.write(bytes(2**16))
        case "writes where it may not":
            Path("/proc/sys/kernel/ostype").write_text("other")  # not even root may
        case "loops":
            all(True for _ in iter(int, 1))  # without end, in one line


def is_here(parameters, rank, step):
    """Whether something is to happen to this rank now."""
    is_early = int(os.environ["TRAIN_FUNC_ATTEMPT"]) <= parameters.get("times", 1)
    return is_early and (rank, step) == (parameters["rank"], parameters["step"])


def works(parameters):
    """Without torch: the others wait as long as they may."""
    rank = int(os.environ["RANK"])
    for step in range(1, parameters.get("steps", 10_000)):
        time.sleep(0.05)
        print(f"step {step}", flush=True)
        if is_here(parameters, rank, step):
            fails(**parameters["fails"])


def meets(parameters):
    """The others wait in an exchange."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(1, 10_000):
        if is_here(parameters, rank, step):
            if parameters["fails"]["how"] == "computes on a GPU":
                torch.ones(1).cuda()
            fails(**parameters["fails"])
        dist.all_reduce(torch.ones(1))
        time.sleep(0.05)


def spoils(folder):
    """All checkpoints below it, also one that is still being saved."""
    spoilt, until = set(), time.monotonic() + 3
    while not spoilt or time.monotonic() < until:
        for manifest in {*folder.rglob("checkpoints/*/*/manifest.json")} - spoilt:
            for file in manifest.parent.iterdir():
                file.write_bytes(b"spoilt")
            spoilt.add(manifest)
        time.sleep(0.05)


def trains(parameters):
    """A loop over ``session.steps`` that tells its steps and saves."""
    import torch
    from datasets import Dataset
    from datasets.distributed import split_dataset_by_node

    from train_func.worker import Session

    how = parameters["fails"]["how"]
    with Session(parameters) as session:
        rows = Dataset.from_dict({"x": [[float(number)] for number in range(64)]})
        plan = split_dataset_by_node(session.plan(rows), session.rank, session.world_size)
        if how == "splits twice":
            plan = split_dataset_by_node(plan, session.rank, session.world_size)
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
        session.checkpoint(model, optimizer)
        for step in session.steps(plan):
            print(f"step {step.number}", flush=True)
            here = is_here(parameters, session.rank, step.number)
            if here and how == "leaves the loop":
                break
            if here and how == "diverges":
                model.weight.data.fill_(float("nan"))
            if here and how == "spoils the checkpoints":
                spoils(Path(parameters["folder"]))
                os.kill(os.getpid(), signal.SIGKILL)
            if here:
                fails(**parameters["fails"])
            if not (here and how == "misses an exchange"):
                torch.distributed.all_reduce(torch.ones(1))
            for batch, weight in step:
                (weight * model(batch["x"]).square().mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(parameters.get("pause", 0.05))
            session.report(step.number, loss=0.5)
        session.publish({"open": sys.stdout} if how == "publishes a file" else model)


def lacks_a_package(parameters):
    import no_such_package

    return no_such_package.answer()


def writes_to_a_file(parameters):
    LOG.write("begun")
