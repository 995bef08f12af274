"""What a backend reports of a job, in one shape for every kind of backend: its conditions, pods, events and lines.

A diagnosis is what these mean: what hinders the job."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal

from train_func.errors import Cause, InvalidInput
from train_func.text import shown

OPEN = ("Pending", "Running")  # phases of a pod that has not ended
DELETED = "Deleted"  # the reason of a pod that a user or a controller has deleted, where no event tells of its end


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
    """Whether it has not finished and has no controller: that, or its machine, died."""
    created: datetime | None = None
    """By the backend's clock; what happened before befell an earlier job of that name. None where that cannot be."""
    deleting: bool = False
    """Whether it was deleted, and goes as soon as its pods have ended."""
    is_over_deadline: bool = False
    """Whether it has failed because it ran longer than its deadline."""
    workers: int | None = None
    """How many the job should have now; None where that is not known."""

    def condition(self, kind: str) -> Condition | None:
        """The condition of that type if it holds now."""
        return next(
            (condition for condition in self.conditions if (condition.type, condition.status) == (kind, "True")), None
        )

    @property
    def finished(self) -> bool:
        """Returns whether Succeeded or Failed holds; nothing changes then."""
        return self.condition("Succeeded") is not None or self.condition("Failed") is not None

    @property
    def is_over(self) -> bool:
        """Returns whether it has finished, or nothing executes it any more."""
        return self.finished or self.interrupted


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
    """The node that it is on; empty while it has none. This machine shows the labels that were asked for behind it."""
    pid: int | None = None
    """The process id of its supervisor, while that is a process of this machine."""
    unheard_since: datetime | None = None
    """When the node of a running pod stopped answering; None while it answers."""


@dataclass(frozen=True)
class ContainerEnd:
    """How the container of a worker's pod ended, as an event tells it."""

    code: int
    message: str
    """What it left as its termination message."""


@dataclass(frozen=True)
class JobEvent:
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
    """The uid of the object it is about, where the backend says so: a name is used again."""
    pod: str = ""
    """Name of the worker's pod that it is about or tells of, if any."""
    worker: int = 0
    """The number of that worker."""
    creation: Literal["", "refused", "made"] = ""
    """What the operator has done about the pod; ``refused`` without ``pod`` where the cluster's words name none."""
    end: ContainerEnd | None = None
    """The end of the pod's container, as the operator tells it."""

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
class LogPosition:
    """How far the log of one pod was read."""

    offset: int = 0
    """Bytes of a file that were read."""
    recent: tuple[str, ...] = ()
    """Time stamps of the last seconds' lines: a log is asked for again from there."""
    num_recent_bytes: int = 0
    """The bytes of those lines, which come again."""
    failures: int = 0
    """Requests in a row that were not answered."""
    is_complete: bool = False
    """Whether nothing more is read: the pod has ended and was read to its end, or cannot be read any more."""


@dataclass(frozen=True)
class Snapshot:
    """Everything that one look at a job has shown; whatever is displayed, waited for or explained is drawn from it."""

    status: JobStatus | None = None
    """None where there is no such job."""
    pods: tuple[Pod, ...] = ()
    """Every incarnation of every worker that is known, also of earlier looks, oldest first."""
    events: tuple[JobEvent, ...] = ()
    """The events that the backend has, oldest first."""
    lines: tuple[LogLine, ...] = ()
    """The lines of the workers' logs since the look before."""
    positions: Mapping[str, LogPosition] = field(default_factory=dict)
    """How far each log was read, by the pod's uid."""
    lost: frozenset[str] = frozenset()
    """Uids of pods whose further lines only the store can have."""
    has_more: bool = False
    """Whether there were more lines than one look reads."""
    note: str = ""
    """Which logs are left out."""
    outage: InvalidInput | None = None
    """Why this look got no answer: all else is then that of the look before."""

    @property
    def running(self) -> set[int]:
        """The workers whose pods run."""
        return {pod.worker for pod in self.pods if pod.phase == "Running" and not pod.deleted}

    def of_this_job(self) -> "Snapshot":
        """The snapshot without what befell an earlier job of that name.

        A cluster keeps events for an hour, and a client that watches keeps the pods that it has seen.
        """
        created = self.status.created if self.status else None
        if created is None:
            return self
        pods = tuple(pod for pod in self.pods if not (pod.deleted and pod.ended and pod.ended < created))
        return replace(self, pods=pods, events=tuple(event for event in self.events if event.time >= created))


@dataclass(frozen=True)
class Diagnosis:
    """Something that stops a job from continuing, or that happened to one of its workers."""

    cause: Cause
    message: str
    """One or a few lines, with the cluster's own words."""
    remedy: str = ""
    """What to do about it."""
    permanent: bool = False
    """Whether only a change can help, once it has lasted."""
    worker_message: str = ""
    """For the end of a worker: what the worker itself wrote about it."""

    @property
    def kind(self) -> object:
        """What stays the same while numbers and workers in the message change."""
        return self.cause, self.permanent, self.remedy

    def __str__(self) -> str:
        return f"{self.message}\n  next: {self.remedy}" if self.remedy else self.message
