"""JobSpec: what a job is, whatever executes it. Kinds render it as a manifest; Local() makes processes of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from train_func.fields import NamedFields
from train_func.wire.codec import Record

RUN_LABEL, GENERATION_LABEL = "train-func/run", "train-func/generation"
COMMAND = ("python", "-u", "-m", "train_func.worker", "run")
JOIN_SECONDS = 900  # pods start at different times: images are pulled, nodes are added
TTL_SECONDS = 24 * 3600  # from the end of a job to its removal


@dataclass(frozen=True, kw_only=True)
class SecretKey(NamedFields):
    """A value that the cluster takes from a Secret of the namespace when the container starts."""

    secret: str
    key: str
    optional: bool = False
    """Whether the container starts without it."""


@dataclass(frozen=True)
class OfWorker:
    """A value that is another one in each worker, or in each place that executes it: its marks, size and paths."""

    own: Literal["number", "pod", "uid", "cpus", "memory", "work", "cache", "claims", "tmp", "hub", "termination"]


Value = str | SecretKey | OfWorker


@dataclass(frozen=True, kw_only=True)
class JobSpec(Record):
    """One job: its workers are alike but for what ``OfWorker`` names."""

    name: str
    labels: Mapping[str, str]
    """The labels of the job and its pods, which are the run's."""
    namespace: str | None
    image: str
    workers: int
    min_workers: int
    """With which the job goes on; all of them where it is not elastic."""
    ranks: int
    """Training processes of each worker."""
    command: tuple[str, ...]
    environment: Mapping[str, Value]
    cpu: str
    """The cores of each worker, a quantity."""
    memory: str | None
    """The memory of each worker, a quantity; None: no limit."""
    disk: str | None
    gpu: int
    cache: str | None
    """PersistentVolumeClaim of all workers; None: a volume of each."""
    claims: tuple[str, ...]
    """PersistentVolumeClaims that inputs lie in."""
    grace_seconds: int
    deadline: int
    """Seconds."""
    max_attempts: int
    spot: bool = False
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    priority_class: str | None = None
    service_account: str | None = None
    queue: str | None = None
