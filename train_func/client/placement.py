"""Placement: where and on what hardware the workers of a run execute; one that exists is valid."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from train_func.client import quantity
from train_func.errors import InvalidInput
from train_func.secret import secret_under

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_IMAGE = re.compile(r"[A-Za-z0-9][\w.\-/:@]*")
# Set by the manifest or by the operator; Kubernetes lets the last duplicate win, so a second value would be lost.
_RESERVED = re.compile(r"TRAIN_FUNC_.*|PET_.*|PYTHONUNBUFFERED|HOME|USER|TMPDIR|HF_HOME|HF_TOKEN|AWS_.*")


@dataclass(frozen=True, kw_only=True)
class SecretKey:
    """A value that the cluster takes from a Secret of the namespace when the container starts."""

    secret: str
    key: str
    optional: bool = False
    """Whether the container starts without it."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """All faults are reported at once.

    Raises:
        InvalidInput: naming every field that cannot work, what it was and what it may be.
    """

    image: str
    cpu: int
    """Cores of each worker."""
    memory: str | None = None
    """Memory of each worker, a Kubernetes quantity; None: no limit."""
    gpu: int = 0
    """GPUs of each worker; as many ranks run in it, or one without any."""
    grace_seconds: int = 30
    """From SIGTERM to SIGKILL."""
    namespace: str | None = None
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, Any]] = ()
    spot: bool = False
    """Whether nodes that can be taken away are tolerated and preferred."""
    queue: str | None = None
    """Kueue's local queue."""
    priority_class: str | None = None
    service_account: str | None = None
    store_secret: str = "myminio"
    """Secret with the keys rootUser and rootPassword, and sessionToken when there is one."""
    hub_secret: str = "hf-secrets"
    """Secret with the key HF_TOKEN; the workers start without it."""
    s3_endpoint: str | None = None
    s3_region: str | None = None
    environment: Mapping[str, str | SecretKey] = field(default_factory=dict)
    """Further variables: plain values, or Secrets by reference."""

    def __post_init__(self) -> None:
        faults = [*_faults(self), *_environment_faults(self.environment)]
        if faults:
            raise InvalidInput(faults)

    @property
    def ranks(self) -> int:
        """Training processes of each worker."""
        return max(1, self.gpu)


def whole_fault(name: str, value: object, low: int) -> str | None:
    """What is wrong with a count that must be at least ``low``."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= low:
        return None
    return f"{name}={value!r}: a whole number of at least {low} is wanted"


def memory_fault(value: object) -> str | None:
    """What is wrong with an amount of memory."""
    try:
        enough = isinstance(value, str) and quantity.parse(value) >= 2**20
    except ValueError:
        enough = False
    return None if enough else f"memory={value!r}: a Kubernetes quantity of at least 1Mi is wanted, such as '8Gi'"


def _faults(placement: Placement) -> list[str]:
    found = [
        whole_fault("cpu", placement.cpu, 1),
        whole_fault("gpu", placement.gpu, 0),
        whole_fault("grace_seconds", placement.grace_seconds, 1),
        memory_fault(placement.memory) if placement.memory is not None else None,
    ]
    if not _IMAGE.fullmatch(placement.image):
        found.append(f"image={placement.image!r}: a container image is wanted, such as 'registry/name:tag'")
    return [fault for fault in found if fault]


def _environment_faults(environment: Mapping[str, str | SecretKey]) -> list[str]:
    faults = []
    for name, value in environment.items():
        if not _VARIABLE.fullmatch(name):
            faults.append(f"environment[{name!r}]: a name of letters, digits and _ is wanted")
        elif _RESERVED.fullmatch(name):
            faults.append(f"environment[{name!r}]: set by train_func or by the operator itself; choose another name")
        elif isinstance(value, str) and (found := secret_under(name, value)):
            faults.append(f"environment[{name!r}]: holds {found}; give SecretKey(secret=..., key=...) instead")
    return faults
