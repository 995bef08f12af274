"""Jobs that hang or end, as the operator 1.9.4 and a kubelet 1.34 left them: played back as a backend shows them."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import ClassVar

from train_func.client.diagnose import JobMonitor
from train_func.client.kinds import reading
from train_func.client.kinds.pytorchjob import PYTORCHJOB
from train_func.client.status import LogLine, Snapshot
from train_func.errors import InvalidInput
from train_func.run import Run
from train_func.wire.records import RunRecord

FOLDER = Path(__file__).parent / "recorded"


class Clock:
    """Seconds that a test lets pass."""

    def __init__(self, begin: datetime = datetime(2026, 11, 21, 14, tzinfo=UTC)) -> None:
        self._begin = begin
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return self._begin + timedelta(seconds=self.seconds)


class RecordedJob:
    """One job, by the name of its file; its JSON may be changed before it is shown."""

    operator, pause = PYTORCHJOB.operator, 0.0

    def __init__(self, name: str) -> None:
        self.recorded = json.loads((FOLDER / f"{name}.json").read_text())
        self.last_line = ""
        self.silence: InvalidInput | None = None

    def status(self):
        return PYTORCHJOB.status(self.recorded["job"])

    def pods(self):
        return [PYTORCHJOB.pod(pod) for pod in self.recorded["pods"]]

    def events(self):
        events = (PYTORCHJOB.understood(reading.event(event)) for event in self.recorded["events"])
        return sorted(events, key=lambda event: event.time)

    def stacks_command(self):
        return ""

    def look(self, since=None, *, worker=None, with_logs=True):
        pods = self.pods()
        lines = [LogLine(pod.worker, pod.uid, self.last_line) for pod in pods if self.last_line]
        return Snapshot(self.status(), tuple(pods), tuple(self.events()), tuple(lines), outage=self.silence)

    def without(self, *, pods=False, events=False, conditions=False) -> "RecordedJob":
        self.recorded["pods"] = [] if pods else self.recorded["pods"]
        self.recorded["events"] = [] if events else self.recorded["events"]
        if conditions:
            self.recorded["job"]["status"]["conditions"] = []
        return self


class RecordedBackend:
    """Has this job and no other."""

    found_by: ClassVar[dict[str, str]] = {}

    def __init__(self, job: RecordedJob) -> None:
        self._job = job

    def job(self, name):
        return self._job


def a_record(workers: int = 1, **options) -> RunRecord:
    run = Run(workers=workers, **options)
    return RunRecord(run=run, name="job-a", generation=1, store="s3://b/runs", function="f", source_sha256="0")


def looked(job, seconds=30, workers=1, **options):
    """All that is told within ``seconds``, the monitor at their end, and when it would have given up."""
    clock = Clock()
    monitor = JobMonitor(a_record(workers, **options), job.operator, clock.now)
    told, given_up = [], None
    for _ in range(seconds):
        told += monitor.look(job.look())
        if given_up is None and monitor.failure():
            given_up = clock.seconds
        clock.seconds += 1
    return told, monitor, given_up
