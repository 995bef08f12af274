"""Placement: where and on what hardware the workers of a run execute; one that exists is valid."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from train_func.client import quantity
from train_func.errors import InvalidInput
from train_func.fields import NamedFields, field_names
from train_func.secret import secret_under
from train_func.storage import scheme_of, schemes
from train_func.validity import whole_fault

LEAST_CPU, MOST_CPU = Decimal("0.01"), 1024
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_IMAGE = re.compile(r"[A-Za-z0-9][\w.\-/:@]*")
_OBJECT = re.compile(r"(?=.{1,253}$)[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_LABEL = re.compile(r"([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?)?")
_TOLERATION = {"key", "operator", "value", "effect", "tolerationSeconds"}
# Set by the manifest or by the operator; Kubernetes lets the last duplicate win, so a second value would be lost.
_RESERVED = re.compile(r"TRAIN_FUNC_.*|PET_.*|PYTHONUNBUFFERED|PYTHONHASHSEED|HOME|USER|TMPDIR|HF_HOME|HF_TOKEN")


@dataclass(frozen=True, kw_only=True)
class SecretKey(NamedFields):
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
    cpu: int | float | str
    """Cores of each worker; parts of one too, as 0.5 or "500m"."""
    memory: str | None = None
    """Memory of each worker, a Kubernetes quantity; None: no limit."""
    disk: str | None = None
    """Most that a worker may keep in each of its cache and its working folder; None: no limit."""
    cache: str | None = None
    """PersistentVolumeClaim that all workers keep their cache in; None: a volume of each."""
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
    """Secret with the store's keys."""
    hub_secret: str = "hf-secrets"
    """Secret with the key HF_TOKEN; the workers start without it."""
    store_settings: Mapping[str, str] = field(default_factory=dict)
    """Variables that lead the workers to the store, beside its Secret's."""
    environment: Mapping[str, str | SecretKey] = field(default_factory=dict)
    """Further variables: plain values, or Secrets by reference."""

    def __post_init__(self) -> None:
        faults = [*_faults(self), *environment_faults(self.environment)]
        if faults:
            raise InvalidInput(faults)

    @property
    def ranks(self) -> int:
        """Training processes of each worker."""
        return max(1, self.gpu)

    @property
    def options(self) -> dict[str, Any]:
        """What the options of the backend came to, as plain JSON values; a variable is an option of its own."""
        apart = ("namespace", "store_settings", "environment")
        options = {name: getattr(self, name) for name in field_names(Placement) if name not in apart}
        options |= {
            "cpu": str(self.cpu),
            "node_selector": dict(self.node_selector),
            "tolerations": [dict(one) for one in self.tolerations],
        }
        given = self.environment.items()
        shown = {name: value if isinstance(value, str) else f"of Secret {value.secret}" for name, value in given}
        return {**options, **{f"environment[{name!r}]": value for name, value in shown.items()}}

    def client_environment(self, store: str, kind: str) -> dict[str, str | SecretKey]:
        """Variables by which a pod that submits runs finds these again."""
        named = {"IMAGE": self.image, "NAMESPACE": self.namespace, "STORE_SECRET": self.store_secret}
        plain = {
            f"TRAIN_FUNC_{name}": value for name, value in {**named, "STORE": store, "KIND": kind}.items() if value
        }
        keys = {
            name: SecretKey(secret=self.store_secret, key=found.key, optional=found.optional)
            for name, found in scheme_of(store).secret_variables.items()
        }
        token = SecretKey(secret=self.hub_secret, key="HF_TOKEN", optional=True)
        return {**plain, **self.store_settings, **keys, "HF_TOKEN": token}


def cpu_fault(value: object) -> str | None:
    """What is wrong with an amount of cores."""
    number = str(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else ""
    try:
        # "500M" are 500 million cores: a suffix other than m is meant for memory, or for m.
        if not number.endswith(("k", "M", "G", "T", "P", "E", "i")) and LEAST_CPU <= quantity.parse(number) <= MOST_CPU:
            return None
    except ValueError:
        pass
    wanted = f"cores are expected, at least {LEAST_CPU} and at most {MOST_CPU}"
    return f"cpu={value!r}: {wanted}: a number such as 2 or 0.5, or a quantity such as '500m'"


def memory_fault(value: object, name: str = "memory") -> str | None:
    """What is wrong with an amount of memory or disk."""
    try:
        enough = isinstance(value, str) and quantity.parse(value) >= 2**20
    except ValueError:
        enough = False
    return None if enough else f"{name}={value!r}: a Kubernetes quantity of at least 1Mi is expected, such as '8Gi'"


def _faults(placement: Placement) -> list[str]:
    image = "a container image is expected, such as 'registry/name:tag'"
    optional = ("namespace", "cache", "queue", "priority_class", "service_account")
    found = [
        cpu_fault(placement.cpu),
        whole_fault("gpu", placement.gpu, 0),
        whole_fault("grace_seconds", placement.grace_seconds, 1),
        memory_fault(placement.memory) if placement.memory is not None else None,
        memory_fault(placement.disk, "disk") if placement.disk is not None else None,
        None if _fits(_IMAGE, placement.image) else f"image={placement.image!r}: {image}",
        *(_name_fault(name, getattr(placement, name)) for name in ("store_secret", "hub_secret")),
        *(_name_fault(name, value) for name in optional if (value := getattr(placement, name)) is not None),
        None if isinstance(placement.spot, bool) else f"spot={placement.spot!r}: True or False is expected",
    ]
    names = [*_selector_faults(placement.node_selector), *_toleration_faults(placement.tolerations)]
    return [*filter(None, found), *names]


def _name_fault(field_name: str, value: object) -> str | None:
    if _fits(_OBJECT, value):
        return None
    return f"{field_name}={value!r}: the name of one in the cluster is expected: small letters, digits, '-' and '.'"


def _selector_faults(given: object) -> list[str]:
    if not isinstance(given, Mapping):
        return [
            f"node_selector={given!r}: a dict of node labels is expected, such as {{'kubernetes.io/arch': 'amd64'}}"
        ]
    return [
        f"node_selector[{label!r}]={value!r}: a label of nodes and its value, both text, are expected"
        for label, value in given.items()
        if not (_fits(_LABEL, label) and _fits(_LABEL_VALUE, value))
    ]


def _fits(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _toleration_faults(given: object) -> list[str]:
    wanted = "{'key': 'team', 'operator': 'Equal', 'value': 'ml', 'effect': 'NoSchedule'}"
    if not isinstance(given, (list, tuple)):
        return [f"tolerations={given!r}: a list of dicts is expected, such as [{wanted}]"]
    return [
        f"tolerations[{number}]={toleration!r}: a dict such as {wanted} is expected"
        for number, toleration in enumerate(given)
        if not (isinstance(toleration, Mapping) and toleration and _tolerates(toleration))
    ]


def _tolerates(toleration: Mapping[str, Any]) -> bool:
    effects = (None, "NoSchedule", "PreferNoSchedule", "NoExecute")
    return (
        not set(toleration) - _TOLERATION
        and toleration.get("operator", "Equal") in ("Equal", "Exists")
        and toleration.get("effect") in effects
    )


def environment_faults(given: object) -> list[str]:
    """What is wrong with further variables of the workers."""
    if not isinstance(given, Mapping):
        return [f"environment={given!r}: a dict of variables is expected"]
    return [fault for name, value in given.items() if (fault := _variable_fault(name, value))]


def _variable_fault(name: object, value: object) -> str | None:
    if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
        return f"environment[{name!r}]: a name of letters, digits and _ is expected"
    if any(pattern.fullmatch(name) for pattern in (_RESERVED, *(scheme.own_variables for scheme in schemes()))):
        return f"environment[{name!r}]: set by train_func or by the operator itself; choose another name"
    if isinstance(value, SecretKey):
        return None
    if not isinstance(value, str):
        return f"environment[{name!r}]={value!r}: a text is expected, or SecretKey(secret=..., key=...)"
    if found := secret_under(name, value):
        return f"environment[{name!r}]: holds {found}; give SecretKey(secret=..., key=...) instead"
    return None
