"""JobSpec: what a job is, whatever executes it. Kinds render it as a manifest; Local() makes processes of it.

Its amounts of cores, memory and disk are the quantities of Kubernetes, such as "8Gi", "500m" and "1e9".
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, Decimal
from typing import Any, Literal

from train_func.fields import NamedFields
from train_func.wire.codec import Record

RUN_LABEL, GENERATION_LABEL = "train-func/run", "train-func/generation"
COMMAND = ("python", "-u", "-m", "train_func.worker", "run")
JOIN_SECONDS = 900  # pods start at different times: images are pulled, nodes are added
TTL_SECONDS = 24 * 3600  # from the end of a job to its removal
_BINARY = {suffix: Decimal(1024) ** power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)}
_DECIMAL = {suffix: Decimal(1000) ** power for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), 1)}
_FACTOR = {"": Decimal(1), "m": Decimal("0.001"), **_BINARY, **_DECIMAL}
_QUANTITY = re.compile(r"(?P<number>\d+(?:\.\d*)?|\.\d+)(?P<suffix>[KMGTPE]i|[mkMGTPE]?|[eE][+-]?\d+)")


@dataclass(frozen=True, kw_only=True)
class SecretKey(NamedFields):
    """A value that the cluster takes from a Secret of the namespace when the container starts."""

    secret: str
    key: str
    optional: bool = False
    """Whether the container starts without it."""


@dataclass(frozen=True)
class OfWorker:
    """A value that differs between workers, or between the places that execute a job: marks, size and paths."""

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
    """The fewest with which the job goes on; all of them where it is not elastic."""
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


def parse_quantity(text: str) -> Decimal:
    """Returns the number that a quantity stands for, bytes for memory.

    Raises:
        ValueError: when ``text`` is no quantity.
    """
    match = _QUANTITY.fullmatch(text)
    if not match:
        raise ValueError(
            f"{text!r} is no quantity: a number with Ki, Mi, Gi, Ti, k, M, G or T is expected, such as 8Gi"
        )
    suffix = match["suffix"]
    factor = _FACTOR[suffix] if suffix in _FACTOR else Decimal(10) ** int(suffix[1:])
    return Decimal(match["number"]) * factor


def whole_quantity(text: str) -> int:
    """Returns the number rounded up, as resourceFieldRef does. Raises ValueError as ``parse_quantity``."""
    return int(parse_quantity(text).to_integral_value(ROUND_CEILING))


def readable_quantity(num_bytes: int) -> str:
    """Returns the bytes as people write them."""
    for suffix, factor in reversed(_BINARY.items()):
        if num_bytes >= factor:
            return f"{Decimal(num_bytes) / factor:.1f}{suffix}"
    return str(num_bytes)
