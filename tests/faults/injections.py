"""python -m tests.faults.injections KIND SEED FOLDER [--on Cluster]

Injects one fault of a kind into a small training, at a moment that the seed draws, and prints as JSON what a user is
told: the cause and the words of the typed error, or of a drill's report where the job goes on.
"""

import argparse
import contextlib
import json
import os
import random
import re
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tests.cluster.kubectl import until
from tests.faults import faulty
from tests.jobs.functions import fine_tunes
from tests.s3_servers import add_minio_user, s3_server
from tests.tiny_model import write_tiny_model
from train_func import Cluster, Local, Run, TextClassification, TrainFuncError, submit
from train_func.client.job import Job
from train_func.errors import Cause
from train_func.process.process_tree import descendants

WORKERS = 2
LIMIT = 300  # seconds for the end of a job
LOCAL, CLUSTER = "Local", "Cluster"
FROZEN_SECONDS = 25  # more than a group waits for a sign of life of a worker
SMALL = {"cpu": "300m", "memory": "1Gi", "grace_seconds": 10}
Told = tuple[Cause | None, str]


class Injection:
    """One fault: what is drawn for it, and the folder that is its own."""

    def __init__(self, kind: "Kind", seed: int, folder: Path, on: str) -> None:
        self.kind, self.seed, self.folder, self.on = kind, seed, folder, on
        self.chance = random.Random(f"{kind.name} {seed}")
        self.rank = self.chance.randrange(WORKERS)
        self.step = self.chance.randint(2, 8)
        self.store = folder / "store"
        """A folder, made here already where it is a disk of its own."""
        self.options: dict[str, Any] = {}
        """Of the backend."""
        self.job: Job | None = None

    def submit(self, **fields: Any) -> Job:
        """Starts the job; raises what submit refuses it with."""
        parameters = {"rank": self.rank, "step": self.step, "folder": str(self.folder), **self.kind.parameters}
        parameters["fails"] = {"how": self.kind.how}
        if self.kind.how == "dies":
            parameters["fails"]["signal"] = self.chance.choice([signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS])
        hang_after = 3 if self.on == LOCAL else 8
        asked = {"workers": WORKERS, "epochs": 10, "max_attempts": 1, "hang_after": hang_after, "seed": self.seed}
        run = Run(**{**asked, "parameters": parameters, **self.kind.run, **fields})
        options = {**self.kind.options, **self.options}
        backend = Local(**options) if self.on == LOCAL else Cluster(**{**SMALL, **options})
        self.job = submit(self.kind.function, run, on=backend, fresh=True)
        return self.job

    def told(self) -> Told:
        """What a user is told of it."""
        try:
            told = self.kind.act(self)
            return told if isinstance(told, tuple) else (None, "the job succeeded")
        except TrainFuncError as error:
            return error.cause, str(error)
        except TimeoutError as error:
            return None, f"nothing: {error}"
        finally:
            with contextlib.suppress(TrainFuncError):
                if self.job:
                    self.job.delete()


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of fault: how it is injected, and the causes that are right for it, the plainest first."""

    name: str
    causes: Sequence[Cause]
    how: str = ""
    """The fault of ``faulty.fails``."""
    function: Callable[..., Any] = faulty.works
    victim: str = "rank"
    """What is at fault, and alone may be named as such; "": no worker is, and any may have noticed it."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    act: Callable[[Injection], Told | None] = lambda injection: ends(injection.submit())
    on: Sequence[str] = (LOCAL, CLUSTER)
    beside: Literal["one", "many", "none"] = "one"
    """How many others may be injected at the same time: many where it only waits, none where it changes the machine."""


def ends(job: Job) -> None:
    """Waits for the end; raises the error of a job that has failed."""
    job.result(LIMIT)


def drills(kill: str, *signals: str, **options: Any) -> Callable[[Injection], Told]:
    """The job goes on, and the report of the drill has the cause."""

    def act(injection: Injection) -> Told:
        job = begins(injection, max_attempts=5, checkpoint_every=0, epochs=30)
        victim = {name: injection.rank for name in [injection.kind.victim] if name}
        sent = {"signal": injection.chance.choice(signals)} if signals else {}
        recovery = job.drill(kill, **victim, **sent, **options).recoveries[0]
        job.cancel()
        return recovery.cause, recovery.message

    return act


def begins(injection: Injection, **fields: Any) -> Job:
    """Submits, and returns when all ranks have done the drawn step."""
    job, line = injection.submit(**fields), f"step {injection.step}"
    until(lambda: sum(text.endswith(line) for text in job.logs()) >= WORKERS, f"{line} of all ranks", LIMIT)
    return job


def is_cancelled(injection: Injection) -> None:
    job = begins(injection)
    job.cancel()
    ends(job)


def loses_its_controller(injection: Injection) -> None:
    job = begins(injection)
    os.kill(int(_job_folder(injection, job).joinpath("controller.pid").read_text()), signal.SIGKILL)
    ends(job)


def kills_a_worker(injection: Injection) -> None:
    job = begins(injection)
    for pid in _processes(injection, job):
        _send(pid, signal.SIGKILL)
    ends(job)


def freezes(injection: Injection) -> None:
    """All processes of a worker give no sign of life for a time, as on a machine that stands still."""
    job = begins(injection)
    frozen = _processes(injection, job)
    for each in frozen:
        os.kill(each, signal.SIGSTOP)
    threading.Timer(FROZEN_SECONDS, lambda: [_send(each, signal.SIGCONT) for each in frozen]).start()
    ends(job)


def has_no_store(injection: Injection) -> None:
    """The store does not answer before the workers have begun, and stays so: as a mount that is dead."""
    job = injection.submit()
    injection.store.rename(injection.store.with_name("away"))
    injection.store.symlink_to(injection.store)
    ends(job)


def fills_its_store(injection: Injection) -> None:
    """The store is a disk of its own; see ``causes.command``."""
    job = begins(injection)
    with contextlib.suppress(OSError), (injection.store / "filler").open("wb") as filler:
        for _ in range(2**12):  # 16 MiB, more than that disk has
            filler.write(bytes(2**12))
            filler.flush()
    ends(job)


def may_not_write(injection: Injection) -> None:
    """The key of the store allows to read alone, and in half of the draws nothing."""
    actions = injection.chance.choice([("s3:GetObject", "s3:ListBucket"), ("s3:GetBucketLocation",)])
    with s3_server("minio", injection.folder / "minio") as server:
        key, secret = add_minio_user(server, prefix="runs", actions=actions)
        given = {**server.environment, "AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}
        os.environ.update(given)
        injection.options["store"] = f"s3://{server.bucket}/runs"
        ends(injection.submit())


def of_task(injection: Injection, **fields: Any) -> dict[str, Any]:
    """Fields of a Run that classifies texts."""
    model = fields.pop("model", None) or str(write_tiny_model(injection.folder / "bert"))
    task = TextClassification(**{"model": model, "dataset": str(_rows(injection)), **fields})
    return {"task": task, "parameters": {}}


def has_a_bad_row(injection: Injection) -> None:
    lines = (path := _rows(injection)).read_text().splitlines()
    number = injection.chance.randrange(1, len(lines))
    lines[number] = injection.chance.choice(["no label,", '"a quote" too many",1', "one,two,three"])
    path.write_text("\n".join(lines) + "\n")
    ends(injection.submit(**of_task(injection)))


def has_no_data(injection: Injection) -> None:
    ends(injection.submit(**of_task(injection, dataset=str(injection.folder / "nowhere.csv"))))


def has_a_damaged_model(injection: Injection) -> None:
    folder = write_tiny_model(injection.folder / "bert")
    path = folder / injection.chance.choice(["config.json", "model.safetensors", "tokenizer.json"])
    path.write_bytes(path.read_bytes()[: injection.chance.randrange(path.stat().st_size // 2)])
    ends(injection.submit(**of_task(injection, model=str(folder))))


def names_nothing_on_the_hub(injection: Injection) -> None:
    """HF_ENDPOINT names a Hub without it; see ``causes.main``."""
    ends(injection.submit(**of_task(injection, model="owner/nothing")))


def has_a_wrong_field(injection: Injection) -> None:
    wrong = [{"workers": 0}, {"epochs": "three"}, {"learning_rate": 2}, {"deadline": -1}, {"batch_sise": 4}]
    injection.submit(**injection.chance.choice(wrong))


def asks_for_too_much(injection: Injection) -> None:
    injection.options |= injection.chance.choice([{"memory": "900Ti"}, {"gpu": 64}])
    injection.submit()


def _rows(injection: Injection) -> Path:
    path = injection.folder / "rows.csv"
    if not path.exists():
        rows = [f"{'good ' * (number % 5)}food {number},{number % 5}" for number in range(40)]
        path.write_text("\n".join(["text,label", *rows]) + "\n")
    return path


def _job_folder(injection: Injection, job: Job) -> Path:
    return injection.folder / "home/jobs" / job.record.job_name


def _processes(injection: Injection, job: Job) -> list[int]:
    """Those of the worker that is drawn, its supervisor first."""
    pid = next(pod.pid for pod in Local().job(job.record.job_name).pods() if pod.worker == injection.rank)
    return [pid, *descendants(pid)]


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


KINDS = [
    Kind(name="a rank raises", how="raises", causes=["code"]),
    Kind(name="a rank raises, the others wait in an exchange", how="raises", function=faulty.meets, causes=["code"]),
    Kind(name="a name is misspelt", how="misspells", causes=["code"]),
    Kind(name="a module is missing in the worker", how="lacks a module", causes=["code"]),
    Kind(name="sys.exit(3)", how="exits", causes=["code"]),
    Kind(name="os._exit(3)", how="leaves", causes=["code"]),
    Kind(name="CUDA on a machine without", how="computes on a GPU", function=faulty.meets, causes=["code"]),
    Kind(
        name="publish of what cannot be saved",
        how="publishes a file",
        function=faulty.trains,
        victim="",
        causes=["code"],
    ),
    Kind(name="a rank leaves the loop", how="leaves the loop", function=faulty.trains, causes=["code"]),
    Kind(name="rows split twice", how="splits twice", function=faulty.trains, victim="", causes=["code"]),
    Kind(name="weights that are not finite", how="diverges", function=faulty.trains, victim="", causes=["divergence"]),
    Kind(name="an allocation fails", how="asks for much", causes=["memory"]),
    Kind(name="a rank grows over the limit", how="hoards", options={"memory": "600Mi"}, causes=["memory"]),
    Kind(
        name="a rank asks for more than the limit at once",
        how="asks for all at once",
        options={"memory": "600Mi"},
        causes=["memory"],
    ),
    Kind(name="a rank is killed", how="dies", causes=["killed"]),
    Kind(
        name="all processes of a worker are killed", act=kills_a_worker, victim="worker", causes=["killed"], on=[LOCAL]
    ),
    Kind(name="a rank is killed, the others wait in an exchange", how="dies", function=faulty.meets, causes=["killed"]),
    Kind(
        name="a rank is killed in every attempt",
        how="dies",
        parameters={"times": 9},
        run={"max_attempts": 2},
        causes=["killed"],
    ),
    Kind(name="a rank loops without end", how="loops", function=faulty.trains, causes=["hang"]),
    Kind(
        name="a rank misses an exchange", how="misses an exchange", function=faulty.trains, victim="", causes=["hang"]
    ),
    Kind(name="the disk of a worker is full", how="fills the disk", causes=["storage"]),
    Kind(name="a file may not be written", how="writes where it may not", causes=["permission"]),
    Kind(
        name="all checkpoints are damaged",
        how="spoils the checkpoints",
        function=faulty.trains,
        run={"checkpoint_every": 0, "max_attempts": 3, "hang_after": 60},
        victim="",
        causes=["storage"],
        on=[LOCAL],
    ),
    Kind(name="the deadline is over", how="", run={"deadline": 8}, victim="", causes=["deadline"]),
    Kind(name="cancelled", act=is_cancelled, victim="", causes=["cancelled"]),
    Kind(name="the controller is killed", act=loses_its_controller, victim="", causes=["interrupted"], on=[LOCAL]),
    Kind(name="a worker stands still", act=freezes, victim="worker", causes=["peer"], on=[LOCAL]),
    # Drills: the job goes on.
    Kind(
        name="drill: a rank is killed",
        function=faulty.trains,
        act=drills("rank", "KILL", "TERM", "INT", "ABRT", "SEGV", "BUS"),
        causes=["killed"],
    ),
    Kind(name="drill: a rank is stopped", function=faulty.trains, act=drills("hang"), causes=["hang"]),
    Kind(
        name="drill: a worker is killed with all its processes",
        function=faulty.trains,
        act=drills("worker", "KILL"),
        victim="worker",
        causes=["killed"],
        on=[LOCAL],
    ),
    Kind(
        name="drill: a worker is told to stop",
        function=faulty.trains,
        act=drills("worker", "TERM"),
        victim="worker",
        causes=["preemption"],
    ),
    Kind(
        name="drill: a node is drained",
        function=faulty.trains,
        act=drills("node"),
        victim="",
        causes=["preemption"],
        beside="none",
    ),
    Kind(
        name="drill: the store is away for a time",
        function=faulty.trains,
        act=drills("store", seconds=6),
        victim="",
        causes=["storage"],
        on=[LOCAL],
    ),
    # The store.
    Kind(name="the store stays away", act=has_no_store, victim="", causes=["storage"], on=[LOCAL], beside="many"),
    Kind(
        name="the store is full",
        parameters={"steps": 60},
        act=fills_its_store,
        victim="",
        causes=["storage"],
        on=[LOCAL],
    ),
    Kind(name="a key that may not write", act=may_not_write, victim="", causes=["storage"], on=[LOCAL]),
    # What submit refuses.
    Kind(name="a bad row", function=fine_tunes, act=has_a_bad_row, victim="", causes=["data"]),
    Kind(name="no such data", function=fine_tunes, act=has_no_data, victim="", causes=["data"]),
    Kind(name="a damaged model", function=fine_tunes, act=has_a_damaged_model, victim="", causes=["model"]),
    Kind(
        name="no such model on the Hub", function=fine_tunes, act=names_nothing_on_the_hub, victim="", causes=["model"]
    ),
    Kind(name="a package is missing", function=faulty.lacks_a_package, victim="", causes=["source"]),
    Kind(name="an open file in the function", function=faulty.writes_to_a_file, victim="", causes=["source"]),
    Kind(name="a wrong field", act=has_a_wrong_field, victim="", causes=["input"]),
    Kind(name="more than this machine has", act=asks_for_too_much, victim="", causes=["scheduling"], on=[LOCAL]),
]


def kinds_of(on: str) -> list[Kind]:
    """Those of a backend."""
    kinds = [kind for kind in KINDS if on in kind.on]
    if on == LOCAL:
        return kinds
    from tests.cluster.injections import KINDS as OF_CLUSTERS

    return [*kinds, *OF_CLUSTERS]


def blamed(message: str) -> list[int]:
    """The workers and ranks that the message names as the fault; rank n is that of worker n."""
    lines = message.partition("\n  next:")[0].splitlines()
    words = "\n".join(line for line in lines if not re.match(r"  (?:rank \d+ in |event: )", line))
    return sorted({int(number) for number in re.findall(r"\b(?:worker|rank) (\d+)", words)})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("seed", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--on", type=str.capitalize, choices=[LOCAL, CLUSTER], default=LOCAL)
    given = parser.parse_args()
    kind = next(kind for kind in kinds_of(given.on) if kind.name == given.kind)
    given.folder.mkdir(parents=True, exist_ok=True)
    os.environ["TRAIN_FUNC_HOME"] = str(given.folder / "home")
    if given.on == LOCAL:
        os.environ["TRAIN_FUNC_STORE"] = (given.folder / "store").as_uri()
    injection = Injection(kind, given.seed, given.folder, given.on)
    with contextlib.redirect_stdout(sys.stderr):
        cause, message = injection.told()
    victim = injection.rank if kind.victim else None
    print(json.dumps({"told": cause, "blamed": blamed(message), "victim": victim, "message": message}))


if __name__ == "__main__":
    main()
