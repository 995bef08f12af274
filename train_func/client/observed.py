"""What a place reports about a job, and what every place can do: one shape for this machine and for a cluster."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from train_func.errors import InvalidInput
from train_func.terminal import shown

if TYPE_CHECKING:
    from train_func.run import Run, RunRecord
    from train_func.storage import Store


@dataclass(frozen=True)
class Condition:
    """One condition of a PyTorchJob, as the operator words it."""

    type: str
    """Created, Running, Restarting, Suspended, Succeeded or Failed."""
    status: str
    """True or False, as Kubernetes writes it."""
    reason: str
    message: str
    time: datetime
    """When ``status`` last changed."""


@dataclass(frozen=True)
class JobStatus:
    """The state of one job; its conditions stand in the order in which they came."""

    conditions: tuple[Condition, ...]
    start_time: datetime | None
    completion_time: datetime | None
    """Absent after a permanent exit code: the operator sets it for success, deadline and backoff limit only."""
    interrupted: bool
    """Not finished, and nobody controls it any more: its controller or its machine died."""
    created: datetime | None = None
    """By the place's clock; what happened before befell an earlier job of that name. None where that cannot be."""
    deleting: bool = False
    """It was deleted, and goes as soon as its pods have ended."""

    def condition(self, kind: str) -> Condition | None:
        """The condition of that type if it holds now."""
        return next((found for found in self.conditions if (found.type, found.status) == (kind, "True")), None)

    @property
    def finished(self) -> bool:
        """Succeeded or Failed holds; nothing changes any more."""
        return self.condition("Succeeded") is not None or self.condition("Failed") is not None


@dataclass(frozen=True)
class Pod:
    """One incarnation of a worker."""

    name: str
    uid: str
    worker: int
    phase: str
    """Pending, Running, Succeeded, Failed or Unknown."""
    exit_code: int | None
    reason: str
    """Why it waits or ended: Completed, Error, OOMKilled, CreateContainerConfigError, ..."""
    message: str
    """Its termination message, or what it waits for."""
    started: datetime | None
    ended: datetime | None
    deleted: bool
    restarts: int = 0
    """Times its container was started again in place."""


@dataclass(frozen=True)
class Event:
    """Something that happened to a job or a pod."""

    time: datetime
    type: str
    """Normal or Warning."""
    reason: str
    message: str
    object: str
    """``PyTorchJob/name`` or ``Pod/name``."""
    count: int = 1
    """Times it has happened; ``time`` is the last."""
    since: datetime | None = None
    """When it happened first, if that is another time."""
    uid: str = ""
    """Of the object it is about, where the place says so: a name is used again."""

    def __str__(self) -> str:
        times = f" ({self.count}x)" if self.count > 1 else ""
        what = f"{self.reason}{times}: {' '.join(self.message.split())}"
        return shown(f"{self.time:%H:%M:%S}  {self.type}  {self.object}  {what}")


@dataclass(frozen=True)
class LogLine:
    """One line a worker wrote, without its line break."""

    worker: int
    pod_uid: str
    text: str


@dataclass(frozen=True)
class LogCut:
    """A pod is gone, and it is not known here whether it had written more; a worker's own copy is in the store."""

    worker: int
    pod_uid: str


@dataclass(frozen=True)
class WhyNot:
    """Why nodes do not take a job's workers."""

    lack: str | None
    """Why all nodes together could not hold them even if they were empty; None when they could."""
    table: str
    """Per node what is free and why not."""


@dataclass(frozen=True)
class Input:
    """Files of this machine that a run reads: a file, or those of a folder that belong to it."""

    path: Path
    files: Mapping[str, str]
    """SHA-256 of each, by its name from the folder that ``path`` lies in."""
    sha256: str
    """Of all their names and bytes."""


class RunsAlready(InvalidInput):
    """There is a job of that name, made at the same moment by somebody else."""


Note = Callable[[str], object]  # is told in words what a person should know


class Place(Protocol):
    """Where jobs execute. Credentials and environment stay inside the place."""

    @property
    def named(self) -> str:
        """What ``attach(name, ...)`` has to be told to find its jobs, as it is written; empty for the default place."""
        ...

    def elsewhere(self, manifest: Mapping[str, Any]) -> str:
        """The place, as it is written, that a manifest was made for; empty when it is this one."""
        ...

    def store_address(self) -> str:
        """Address of the store that runs here use."""
        ...

    def models_folder(self) -> Path:
        """Where fetched models go by default."""
        ...

    def render(self, record: "RunRecord", files: Sequence[str]) -> dict[str, Any]:
        """The PyTorchJob of a run for this place; ``files`` are the names in its ConfigMap."""
        ...

    def preflight(self, run: "Run") -> None:
        """Raises InvalidInput with everything that would keep the run from starting here; creates nothing."""
        ...

    def admit(self, record: "RunRecord", num_model_bytes: int) -> None:
        """Raises InvalidInput when a job of the run, started now, finds no room and could not wait for it."""
        ...

    def carry(self, run: "Run", inputs: Mapping[str, Input], store: "Store") -> "Run":
        """The run with addresses that its workers can read; ``inputs`` are its local files, by field."""
        ...

    def create(self, job_name: str, manifest: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
        """Start a job; raises InvalidInput when it cannot run here, RunsAlready when it runs."""
        ...

    def status(self, job_name: str) -> JobStatus | None:
        """The job's state, or None when there is no such job."""
        ...

    def pods(self, job_name: str) -> list[Pod]:
        """Every incarnation of every worker, the deleted ones too, oldest first."""
        ...

    def events(self, job_name: str) -> list[Event]:
        """All events, oldest first."""
        ...

    def log_lines(
        self, job_name: str, *, follow: bool, worker: int | None = None, note: Note, stop: threading.Event
    ) -> "Iterator[LogLine | LogCut]":
        """Lines of the pods there are from their first; with ``follow`` until the job has ended and all was read.

        A large job may show some of its workers only while it is followed; ``worker`` asks for one of them alone.
        ``note`` is told in words what is left out, and that nothing comes because the place is away. ``stop``, set from
        another thread, ends the following.
        """
        ...

    def last_lines(self, job_name: str, pods: Sequence[Pod]) -> Mapping[str, str]:
        """The last line that each of these running pods has written, by its uid; without those that are not known."""
        ...

    def unheard(self, job_name: str) -> "InvalidInput | None":
        """Why nothing new is heard of the job, though it is asked for; None while that is not so."""
        ...

    def await_change(self, job_name: str, seconds: float) -> None:
        """Returns when something about the job may have changed, or after so many seconds."""
        ...

    def why_not(self, job_name: str) -> WhyNot | None:
        """Why its waiting workers find no room; None where that cannot be known."""
        ...

    def cancel(self, job_name: str) -> None:
        """Stop the job within its grace period; raises JobNotFound."""
        ...

    def delete(self, job_name: str) -> None:
        """Stop the job and remove all that belongs to it; nothing happens when there is none."""
        ...
