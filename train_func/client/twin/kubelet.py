"""The node's part: starts the containers of pods, ends them, records what became of them.

One container per pod, which starts once, and one shim process per container.
"""

import contextlib
import json
import os
import select
import signal
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from train_func import process_tree
from train_func.client.twin import shim
from train_func.client.twin.container import Node
from train_func.client.twin.record import PodRecord, stamp
from train_func.client.twin.substitutes import CannotStart

# A cluster needs a second or more to replace a pod; without any pause a worker that always ends at once fills the disk.
SHORT_LIFE, FIRST_DELAY, LONGEST_DELAY = 10.0, 0.5, 10.0
LOST: dict[str, Any] = {
    "exit_code": 137,
    "reason": "ContainerStatusUnknown",
    "message": "the process that kept the container was killed, and the container with it",
}


@dataclass
class _Container:
    record: PodRecord
    shim: int
    commands: int
    """Pipe to the shim."""
    reports: int
    """Pipe from the shim."""
    begun: float
    said: bytes = b""
    end: dict[str, Any] = field(default_factory=dict)


class Kubelet:
    """The pods of one job; ``records`` holds all of them, oldest first, also the deleted ones."""

    def __init__(self, node: Node, records: list[PodRecord], event: Callable[[str, str, str, str], None]) -> None:
        self.records = records
        self._node = node
        self._event = event
        self._containers: dict[str, _Container] = {}
        self._start_at: dict[str, float] = {}
        self._overdue_at: dict[str, float] = {}
        self._past_deadline: set[str] = set()
        self._leaving: list[PodRecord] = []
        """Deleted pods whose container has ended: they are reported once in that state, before they are gone."""
        self._short_lives: dict[int, int] = {}
        self.wake = shim.listen_for_signals()

    @property
    def pods(self) -> list[PodRecord]:
        """Those that exist."""
        return [record for record in self.records if not record.deleted]

    @property
    def live(self) -> bool:
        """Whether anything runs, or is about to."""
        return bool(self._containers or self._start_at or self._leaving)

    def create(self, worker: int) -> None:
        """Adds a pod; its container starts at once unless its predecessors were short-lived."""
        spec = self._node.spec
        record = PodRecord(name=spec.pod_name(worker), uid=str(uuid.uuid4()), worker=worker, created=stamp())
        record.reason = "ContainerCreating"
        self.records.append(record)
        now = time.monotonic()
        self._start_at[record.uid] = now + self._delay(worker)
        self._overdue_at[record.uid] = now + spec.pod["activeDeadlineSeconds"]

    def delete(self, record: PodRecord) -> None:
        """Asks its processes to end within the grace period; a pod without any is gone at once."""
        if record.deleting:
            return
        record.deleting = True
        container = self._containers.get(record.uid)
        if container is None:
            self._delete_now(record)
        else:
            self._terminate(container)

    def wait(self, seconds: float) -> set[int]:
        """Waits at most ``seconds`` for news, and takes them in; returns the signals this process got."""
        if self._leaving:
            seconds = 0.0
            while self._leaving:
                self._delete_now(self._leaving.pop())
        reports = {container.reports: container for container in self._containers.values()}
        timers = [when - time.monotonic() for when in (*self._start_at.values(), *self._overdue_at.values())]
        readable, _, _ = select.select([self.wake, *reports], [], [], max(0.0, min([seconds, *timers])))
        signals = set(os.read(self.wake, 4096)) if self.wake in readable else set()
        for descriptor in readable:
            if descriptor in reports:
                self._hear(reports[descriptor])
        self._start_due()
        self._end_overdue()
        return signals

    def _delay(self, worker: int) -> float:
        short = self._short_lives.get(worker, 0)
        return 0.0 if short < 2 else min(LONGEST_DELAY, FIRST_DELAY * 2 ** (short - 2))

    def _start_due(self) -> None:
        for record in list(self.records):
            if self._start_at.get(record.uid, float("inf")) <= time.monotonic():
                del self._start_at[record.uid]
                self._start(record)

    def _start(self, record: PodRecord) -> None:
        try:
            launch = self._node.launch(record)
        except CannotStart as refusal:
            record.reason, record.message = refusal.reason, str(refusal)
            self._event("Warning", refusal.reason, str(refusal), f"Pod/{record.name}")
            return
        child_commands, commands = os.pipe()
        reports, child_reports = os.pipe()
        pid = os.fork()
        if pid == 0:
            _become_shim(launch, child_commands, child_reports)
        os.close(child_commands)
        os.close(child_reports)
        record.shim = pid
        self._containers[record.uid] = _Container(record, pid, commands, reports, time.monotonic())

    def _hear(self, container: _Container) -> None:
        data = os.read(container.reports, 65536)
        if not data:
            self._ended(container)
            return
        *lines, container.said = (container.said + data).split(b"\n")
        for line in map(json.loads, lines):
            if "pid" in line:
                self._started(container.record, line["pid"])
            else:
                container.end = line

    def _started(self, record: PodRecord, pid: int) -> None:
        self._event("Normal", "Created", "Created container pytorch", f"Pod/{record.name}")
        record.phase, record.reason, record.started, record.pid = "Running", "", stamp(), pid
        self._event("Normal", "Started", "Started container pytorch", f"Pod/{record.name}")

    def _ended(self, container: _Container) -> None:
        """The shim is gone; where it has reported no end, what it left is ended here."""
        os.close(container.commands)
        os.close(container.reports)
        os.waitpid(container.shim, 0)
        record = container.record
        self._node.folder.link(record).unlink(missing_ok=True)
        del self._containers[record.uid]
        if not container.end:
            process_tree.kill_descendants(spare=[other.shim for other in self._containers.values()])
        end = container.end or LOST
        record.exit_code, record.reason, record.message = end["exit_code"], end["reason"], end["message"]
        record.ended = stamp()
        lived = time.monotonic() - container.begun
        self._short_lives[record.worker] = self._short_lives.get(record.worker, 0) + 1 if lived < SHORT_LIFE else 0
        self._tell_end(record)
        self._finish(record)

    def _tell_end(self, record: PodRecord) -> None:
        """As the operator does, which copies the termination message of a container that failed by itself."""
        spec = self._node.spec
        about = f"PyTorchJob/{spec.name}"
        if record.exit_code and not record.deleting:
            what = f"Error pod {record.name} container pytorch exitCode: {record.exit_code}"
            self._event("Warning", record.reason, f"{what} terminated message: {record.message}", about)
        message = f"Pod: {spec.namespace}.{record.name} exited with code {record.exit_code}"
        self._event("Normal", "ExitedWithCode", message, about)

    def _finish(self, record: PodRecord) -> None:
        record.phase = "Succeeded" if record.exit_code == 0 else "Failed"
        if record.uid in self._past_deadline:
            record.phase, record.reason = "Failed", "DeadlineExceeded"
        self._overdue_at.pop(record.uid, None)
        if record.deleting:
            self._leaving.append(record)

    def _delete_now(self, record: PodRecord) -> None:
        self._start_at.pop(record.uid, None)
        self._overdue_at.pop(record.uid, None)
        record.deleted = True
        self._node.folder.clear(record)
        about = f"PyTorchJob/{self._node.spec.name}"
        self._event("Normal", "SuccessfulDeletePod", f"Deleted pod: {record.name}", about)

    def _terminate(self, container: _Container) -> None:
        self._event("Normal", "Killing", "Stopping container pytorch", f"Pod/{container.record.name}")
        try:
            os.write(container.commands, shim.TERMINATE)
        except BrokenPipeError:
            return  # it has just ended; its last report comes next

    def _end_overdue(self) -> None:
        """A pod has a deadline of its own, counted from its creation; one without a container fails at once."""
        overdue = {uid for uid, when in self._overdue_at.items() if time.monotonic() >= when}
        for record in [record for record in self.pods if record.uid in overdue]:
            del self._overdue_at[record.uid]
            self._past_deadline.add(record.uid)
            if container := self._containers.get(record.uid):
                self._terminate(container)
            else:
                self._start_at.pop(record.uid, None)
                self._finish(record)


def _become_shim(launch: shim.Launch, commands: int, reports: int) -> NoReturn:
    """In the forked process: keeps nothing of the controller but its log, and never returns."""
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for descriptor in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
            if descriptor > 2 and descriptor not in (commands, reports):
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        shim.Shim(launch, commands, reports).live()
    except BaseException as failure:
        print(f"shim failed: {failure!r}", flush=True)
        raise
    finally:
        os._exit(0)
