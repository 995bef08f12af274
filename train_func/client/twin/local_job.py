"""A job of this machine: looked at and changed through its folder, which its controller and every process share."""

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from train_func.client.kinds.pytorchjob import PYTORCHJOB
from train_func.client.status import Event, JobStatus, LogLine, Pod
from train_func.client.twin import logs, rules, start_and_end
from train_func.client.twin.folder import JobFolder
from train_func.errors import InvalidInput, JobNotFound
from train_func.layout import home

_JOB_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
LOOK_SECONDS = 0.3  # between two looks at a job that is waited for


class LocalJob:
    """A BoundJob. Keeps nothing: TRAIN_FUNC_HOME is read with each call."""

    operator = PYTORCHJOB.operator

    def __init__(self, name: str) -> None:
        self.name = name

    def status(self) -> JobStatus | None:
        """The job's state, or None when there is no such job here, or none any more: it has expired."""
        folder = self._folder()
        controlled = folder.controlled()  # before reading: a controller writes its last status before it ends
        status = folder.read("status.json")
        if status is None or folder.expired():
            return None
        interrupted = not rules.finished(status) and not controlled and not folder.controlled()
        created = next(of["lastTransitionTime"] for of in status["conditions"] if of["type"] == "Created")
        job = {"metadata": {"creationTimestamp": created}, "status": status}
        return replace(PYTORCHJOB.status(job), interrupted=interrupted)

    def pods(self) -> list[Pod]:
        """Every incarnation of every worker, the deleted ones and those of earlier jobs too, oldest first."""
        folder = self._folder()
        controlled = folder.controlled()
        return [record.observed(controlled=controlled) for record in folder.records()]

    def events(self) -> list[Event]:
        return [_event(found) for found in self._folder().events()]

    def logs(
        self,
        *,
        follow: bool,
        worker: int | None = None,
        note: Callable[[str], object] = print,
        stop: threading.Event | None = None,
    ) -> Iterator[LogLine]:
        """Of every incarnation; ``note`` is never told anything: all workers of this machine are followed."""
        return logs.lines(self._folder(), follow=follow, worker=worker, stop=stop or threading.Event())

    def last_lines(self, pods: Sequence[Pod]) -> Mapping[str, str]:
        return logs.last_lines(self._folder(), {pod.uid for pod in pods})

    def wait_for_change(self, seconds: float) -> None:
        time.sleep(min(seconds, LOOK_SECONDS))  # a look here costs next to nothing

    def outage(self) -> InvalidInput | None:
        """None: this machine can always be asked."""
        return None

    def stacks_command(self) -> str:
        """Asks the first process of each pod, its supervisor."""
        pids = [str(record.pid) for record in self._folder().records() if record.pid and record.phase == "Running"]
        return f"kill -QUIT {' '.join(pids)}" if pids else ""

    def delete_pod(self, pod_name: str) -> None:
        """Asks for the deletion of a worker's pod and returns; what then becomes of the job is the operator's matter.

        Raises:
            JobNotFound: there is no such job or pod here, or it has no controller any more.
        """
        folder = self._folder()
        existing = {record.name: record.uid for record in folder.records() if not record.deleted}
        if pod_name not in existing or not folder.controlled():
            raise JobNotFound(f"no pod {pod_name!r} of job {self.name} runs; it has: {', '.join(existing) or 'none'}")
        (folder.deletions / existing[pod_name]).touch()

    def cancel(self) -> None:
        """Ends all processes of the job within its grace period; it then has Failed for the reason Cancelled.

        Raises:
            JobNotFound: there is no such job here.
            JobFailed: its controller does not end.
        """
        if self.status() is None:
            raise JobNotFound(f"this machine has no job {self.name!r} in {home(os.environ) / 'jobs'}")
        start_and_end.end(self._folder())

    def delete(self) -> None:
        """Cancels the job and removes its folder with all logs; nothing happens when there is none."""
        folder = self._folder()
        if folder.read("status.json") is not None:
            start_and_end.end(folder)
        if folder.root.exists():
            folder.remove()

    def _folder(self) -> JobFolder:
        """Its folder, which is empty when it has expired."""
        folder = folder_of(self.name)
        start_and_end.forget_expired(folder)
        return folder


def folder_of(name: str) -> JobFolder:
    """Where a job of this machine lives; raises InvalidInput when no job can have that name."""
    if not _JOB_NAME.fullmatch(name):
        rule = "a DNS label is expected: a-z, 0-9 and -, at most 63 characters, a letter first"
        raise InvalidInput(f"{name!r} cannot be the name of a job: {rule}")
    return JobFolder(home(os.environ), name)


def _event(found: Mapping[str, str]) -> Event:
    time = datetime.fromisoformat(found["time"])
    return PYTORCHJOB.understood(Event(time, found["type"], found["reason"], found["message"], found["object"]))
