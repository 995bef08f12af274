"""A training of 35 slow steps that says when each is done, and what its steps tell about a fault that befell it."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.cluster.following import Followed, by_attempt
from tests.cluster.kubectl import Kubectl, until
from train_func import Cluster, Run, submit
from train_func.client.diagnose import JobMonitor
from train_func.client.job import Job
from train_func.client.status import Diagnosis
from train_func.client.stored_attempts import all_ends
from train_func.client.watch import looks
from train_func.wire.records import EndRecord

NUM_STEPS = 7 * 5  # 101 rows in batches of 16, five times
ONCE = list(range(1, NUM_STEPS + 1))
LIMIT_SECONDS = 240.0
SMALL = {"cpu": "500m", "memory": "1Gi", "grace_seconds": 30}
_DONE = re.compile(r"step (\d+) is done at (\S+)")


def trains_in_steps(parameters):
    import os

    import torch
    from datasets import Dataset
    from datasets.distributed import split_dataset_by_node
    from torch.nn.parallel import DistributedDataParallel

    from train_func.worker import Session

    def eats_all_memory():
        hoard = []
        while True:
            hoard.append(bytearray(b"x" * 16_000_000))

    with Session(parameters) as session:
        x = torch.randn(101, 3, generator=torch.Generator().manual_seed(0))
        rows = Dataset.from_dict({"x": x.numpy(), "y": x.sum(1).numpy()})
        plan = split_dataset_by_node(session.plan(rows), session.rank, session.world_size)
        model = DistributedDataParallel(torch.nn.Linear(3, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        session.checkpoint(model, optimizer)
        for step in session.steps(plan):
            total = 0.0
            for batch, weight in step:
                loss = torch.nn.functional.mse_loss(model(batch["x"]).squeeze(1), batch["y"])
                (weight * loss).backward()
                total += loss.item()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(parameters["pause"])
            print(f"step {step.number} is done at {time.time():.3f}", flush=True)
            session.report(step.number, loss=total)
            is_first = os.environ["TRAIN_FUNC_ATTEMPT"] == "1"
            if is_first and session.rank == 1 and step.number == parameters.get("eats_at"):
                eats_all_memory()
        session.publish(model)


class Listening:
    """Hears what hinders a job, as a client that waits for it does."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.heard: list[Diagnosis] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def until_heard(self, words: str, seconds: float = LIMIT_SECONDS) -> Diagnosis:
        """The first diagnosis with these words."""

        def found() -> list[Diagnosis]:
            return [diagnosis for diagnosis in self.heard if words in str(diagnosis)]

        return until(found, words, seconds, self.evidence)[0]

    def evidence(self) -> str:
        return "\n".join([repr(self.job), *map(str, self.heard)])

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(LIMIT_SECONDS)  # the next test changes the environment that it looks at

    def _listen(self) -> None:
        monitor = JobMonitor(self.job.record, self.job._job.operator)
        for snapshot in looks(self.job._job, worker=0):
            self.heard += monitor.look(snapshot)
            if self._stopped.is_set():
                return


class Training(Listening):
    """A job of two workers that trains in steps; its log is followed."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._followed = Followed(job)
        self._followed.start()

    @property
    def name(self) -> str:
        return self.job.record.job_name

    @property
    def selector(self) -> str:
        """Of its pods."""
        return f"--selector=training.kubeflow.org/job-name={self.name}"

    def pod(self, worker: int) -> str:
        return f"{self.name}-worker-{worker}"

    def until_step(self, number: int) -> None:
        self._until(lambda: self._followed.has(f"step {number} is done"), f"step {number}")

    def until_state(self, state: str) -> None:
        self._until(lambda: self.job.state == state, state)

    def succeeds(self) -> None:
        self._until(lambda: self.job.state in ("Succeeded", "Failed"), "the end")
        assert self.job.state == "Succeeded", self.evidence()
        self._followed.join(LIMIT_SECONDS)
        assert self._followed.error is None, self._followed.error

    def steps(self) -> dict[int, dict[int, float]]:
        """By attempt: its steps, and when each was done, by the lines of all workers: a killed one loses some."""
        done: dict[int, dict[int, float]] = {}
        for (attempt, _), texts in sorted(by_attempt(list(self.job.logs())).items()):
            for step, at in _DONE.findall("\n".join(texts)):
                done.setdefault(attempt, {}).setdefault(int(step), float(at))
        return {attempt: dict(sorted(steps.items())) for attempt, steps in done.items()}

    def numbers(self) -> list[int]:
        """The steps that all attempts have done, one after the other."""
        return [number for steps in self.steps().values() for number in steps]

    def causes(self, attempt: int) -> set[str | None]:
        """Why its workers ended, without those that followed."""
        return {end.cause for end in self.ends(attempt) if end.root_cause}

    def evidence(self) -> str:
        return "\n".join([super().evidence(), *self._followed.lines[-40:]])

    def ends(self, attempt: int) -> list[EndRecord]:
        """How its workers ended, as they put it on record."""
        return [end for end in all_ends(self.job._store, self.job.record.keys) if end.attempt == attempt]

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        until(condition, what, LIMIT_SECONDS, self.evidence)


@contextmanager
def training(
    backend: Cluster | None = None, *, pause: float = 0.3, eats_at: int = 0, **of_run: Any
) -> Iterator[Training]:
    """A fresh one; its job is deleted afterwards."""
    parameters = {"pause": pause, "eats_at": eats_at}
    given = {"workers": 2, "epochs": 5, "batch_size": 16, "micro_batch_size": 4, "checkpoint_every": 3600.0}
    run = Run(parameters=parameters, **{**given, **of_run})
    job = submit(trains_in_steps, run, on=backend or Cluster(**SMALL), fresh=True)
    found = Training(job)
    try:
        yield found
    finally:
        found.stop()
        job.delete()


def goes_on_from_a_checkpoint(steps: dict[int, dict[int, float]]) -> bool:
    """Whether the attempts left out no step; one may have repeated some of the one before."""
    reached = 0
    for done in map(list, steps.values()):
        if done != list(range(done[0], done[-1] + 1)) or not 1 <= done[0] <= reached + 1:
            return False
        reached = done[-1]
    return reached == NUM_STEPS


KILLS = """
for process in /proc/[0-9]*; do
    [ "$(cat "$process/comm" 2>&1)" = "$0" ] && kill -KILL "${process#/proc/}" && sent=yes
done
[ "$sent" = yes ]
"""


def kill_rank(admin: Kubectl, namespace: str, found: Training, rank: int) -> None:
    """The one of the worker of the same number."""
    admin("exec", found.pod(rank), f"--namespace={namespace}", "--", "sh", "-c", KILLS, f"rank {rank}")
