"""One driver for both backends: plays a scenario on this machine or on the operator, and writes down what was seen."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tests.cluster.conformance_trace import Trace
from train_func.client.job_spec import JobSpec
from train_func.client.placement import Placement, job_spec
from train_func.run import Run
from train_func.wire.records import RunRecord

if TYPE_CHECKING:
    from tests.cluster.scenarios import Scenario

Json = dict[str, Any]
PROGRAM = Path(__file__).with_name("conformance_program.py")
IMAGE = "docker.io/library/python:3.11-slim"
GRACE = 4  # seconds


@dataclass
class SeenPod:
    """One incarnation of a worker, as its backend told last."""

    uid: str
    worker: int
    name: str
    phase: str
    exit_code: int | None
    reason: str
    restarts: int
    deleted: bool = False

    @property
    def over(self) -> bool:
        return self.deleted or self.phase in ("Succeeded", "Failed")

    def __str__(self) -> str:
        restarted = f", started again {self.restarts} times" if self.restarts else ""
        return f"{self.phase} {self.exit_code} {self.reason}{restarted}{', deleted' if self.deleted else ''}"


class Record:
    """Everything that a backend tells about one job, in order; filled by its watch."""

    def __init__(self) -> None:
        self.conditions: list[str] = []
        self.pods: dict[str, SeenPod] = {}
        self.gone = False
        self._news = threading.Condition()

    @contextmanager
    def news(self) -> Iterator[None]:
        """Held while something is added."""
        with self._news:
            yield
            self._news.notify_all()

    def tell_conditions(self, conditions: list[dict[str, str]]) -> None:
        """Adds the types of the conditions that hold now, if they are others than before."""
        held = " ".join(condition["type"] for condition in conditions if condition["status"] == "True")
        with self.news():
            if held and (not self.conditions or self.conditions[-1] != held):
                self.conditions.append(held)

    def tell_pod(self, pod: SeenPod) -> None:
        with self.news():
            self.pods[pod.uid] = pod

    def until(self, condition: Callable[[], bool], what: str, seconds: float) -> None:
        with self._news:
            assert self._news.wait_for(condition, seconds), f"{what}: not within {seconds} s; {self}"

    def __str__(self) -> str:
        return f"conditions {self.conditions}, pods {list(self.pods.values())}"


class Stage(Protocol):
    """A backend as the driver needs it."""

    pace: float
    """Seconds."""
    timeout: float
    """Seconds until something that has to happen has happened."""
    namespace: str

    def create(self, job: str, spec: JobSpec) -> Record:
        """Starts the job."""
        ...

    def delete_pod(self, job: str, pod: SeenPod) -> None:
        """Has the pod asked to end."""
        ...

    def text(self, job: str, pod: SeenPod) -> str:
        """Log of a pod that exists; empty when it has none yet."""
        ...

    def as_on_a_cluster(self, job: str, pod: SeenPod, value: str) -> str:
        """The value of a variable with what the backend substituted put back."""
        ...

    def delete(self, job: str) -> None: ...

    def left(self, job: str) -> list[str]:
        """What is there of a job that was deleted."""
        ...


class Play:
    """One scenario on one backend."""

    def __init__(self, scenario: "Scenario", stage: Stage) -> None:
        self.scenario = scenario
        self.stage = stage
        self.job = f"c-{scenario.name}"

    def run(self) -> Trace:
        """Plays it and takes the job away again."""
        self.record = self.stage.create(self.job, self._spec())
        try:
            self.scenario.act(self)
            self.until(self.at_rest, "the end")
            trace = self._trace()
        finally:
            self.stage.delete(self.job)
        trace.left = self.stage.left(self.job)
        return trace

    # What a scenario does from outside.

    def ready(self, *workers: int) -> None:
        """Waits until these workers work, and the job says so."""
        self.until_condition("Running")
        for worker in workers:
            self.until(lambda worker=worker: bool(self._running(worker)), f"worker {worker} runs")
            pod = self._running(worker)[-1]
            end = time.monotonic() + self.stage.timeout
            while "ready" not in self.stage.text(self.job, pod).splitlines():
                assert time.monotonic() < end, f"worker {worker} of {self.job} is never ready"
                time.sleep(0.1)

    def delete_pod(self, worker: int) -> None:
        self.stage.delete_pod(self.job, self._running(worker)[-1])

    def until_condition(self, kind: str) -> None:
        self.until(lambda: self.holds(kind), kind)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        self.record.until(condition, f"{self.job}: {what}", self.stage.timeout)

    def holds(self, kind: str) -> bool:
        return bool(self.record.conditions) and kind in self.record.conditions[-1].split()

    def finished(self) -> bool:
        return self.holds("Succeeded") or self.holds("Failed")

    def at_rest(self) -> bool:
        """The job has finished and so have its pods."""
        return self.finished() and all(pod.over for pod in self.record.pods.values())

    def _running(self, worker: int) -> list[SeenPod]:
        pods = self.record.pods.values()
        return [pod for pod in pods if pod.worker == worker and pod.phase == "Running" and not pod.deleted]

    # What is put in and what comes out.

    def _spec(self) -> JobSpec:
        scenario, pace = self.scenario, self.stage.pace
        placement = Placement(
            image=IMAGE,
            cpu=scenario.cpu,
            grace_seconds=GRACE,
            environment={"CONFORMANCE_PACE": str(pace), **scenario.environment},
        )
        deadline = {} if scenario.deadline is None else {"deadline": _seconds(scenario.deadline, pace)}
        run = Run(workers=scenario.workers, max_attempts=scenario.max_attempts, **deadline)
        command = ("python", "-u", "-c", PROGRAM.read_text(), *scenario.behaviour.split())
        return replace(job_spec(_run_record(self.job, run), placement), command=command)

    def _trace(self) -> Trace:
        workers = sorted({pod.worker for pod in self.record.pods.values()})
        pods = {worker: [pod for pod in self.record.pods.values() if pod.worker == worker] for worker in workers}
        return Trace(
            conditions=list(self.record.conditions),
            pods={str(worker): [str(pod) for pod in pods[worker]] for worker in workers},
            environments={str(w): self._environment(p[-1]) for w, p in pods.items() if not p[-1].deleted},
        )

    def _environment(self, pod: SeenPod) -> dict[str, str]:
        first = self.stage.text(self.job, pod).splitlines()[0]
        environment = {
            name: self.stage.as_on_a_cluster(self.job, pod, value) for name, value in json.loads(first).items()
        }
        return {name: self._nameless(value) for name, value in sorted(environment.items())}

    def _nameless(self, text: str) -> str:
        return text.replace(self.job, "JOB").replace(f"{self.stage.namespace}/", "NAMESPACE/")


def _seconds(paces: float, pace: float) -> int:
    return max(1, round(paces * pace))


def _run_record(job: str, run: Run) -> RunRecord:
    return RunRecord(
        run=run,
        name=job,
        generation=1,
        store="file:///srv/store",
        function="f",
        source_sha256="0",
    )
