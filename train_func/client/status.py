"""What a backend reports of a job: its conditions, pods, events and lines, in one shape for every kind of backend."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from train_func.text import shown


@dataclass(frozen=True)
class Condition:
    """One condition of a job, in the words that are the same for every kind of job."""

    type: str
    """Created, Running, Restarting, Suspended, Succeeded or Failed."""
    status: str
    """True or False, as Kubernetes writes it."""
    reason: str
    message: str


@dataclass(frozen=True)
class JobStatus:
    """The state of one job; its conditions stand in the order in which they came."""

    conditions: tuple[Condition, ...]
    interrupted: bool = False
    """Not finished, and without a controller: that, or its machine, died."""
    created: datetime | None = None
    """By the backend's clock; what happened before befell an earlier job of that name. None where that cannot be."""
    deleting: bool = False
    """It was deleted, and goes as soon as its pods have ended."""
    is_over_deadline: bool = False
    """It has failed because it ran longer than its deadline."""

    def condition(self, kind: str) -> Condition | None:
        """The condition of that type if it holds now."""
        return next((found for found in self.conditions if (found.type, found.status) == (kind, "True")), None)

    @property
    def finished(self) -> bool:
        """Succeeded or Failed holds; nothing changes any more."""
        return self.condition("Succeeded") is not None or self.condition("Failed") is not None


@dataclass(frozen=True)
class Deletion:
    """Of a pod that is still there."""

    due: datetime
    """When its grace period is over, by the backend's clock."""
    grace_seconds: float


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
    namespace: str = ""
    node: str = ""
    """The node that it is on; empty while it has none, or where a backend has no nodes."""
    deletion: Deletion | None = None
    """Of a pod that is deleted and still there."""
    is_unheard: bool = False
    """Whether it runs, as far as is known, on a node that the cluster has not heard from for a while."""


@dataclass(frozen=True)
class ContainerEnd:
    """How the container of a worker's pod ended, as an event tells it."""

    code: int
    message: str
    """What it left as its termination message."""


@dataclass(frozen=True)
class Event:
    """Something that happened to a job or a pod."""

    time: datetime
    type: str
    """Normal or Warning."""
    reason: str
    message: str
    object: str
    """Kind and name, such as ``Pod/name``."""
    count: int = 1
    """Times it has happened; ``time`` is the last."""
    since: datetime | None = None
    """When it happened first, if that is another time."""
    uid: str = ""
    """Of the object it is about, where the backend says so: a name is used again."""
    pod: str = ""
    """Name of the worker's pod that it is about or tells of, if any."""
    worker: int = 0
    """The number of that worker."""
    creation: Literal["", "refused", "made"] = ""
    """Of the pod, by the operator; ``refused`` without ``pod`` where the cluster's words name none."""
    end: ContainerEnd | None = None
    """Of the pod's container, by the operator."""

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
