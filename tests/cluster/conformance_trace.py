"""What was seen of one scenario, in words that can be compared; and where this machine and the operator differ."""

import re
from dataclasses import asdict, dataclass, field
from typing import Any, Self

ANYTHING = ".*"


@dataclass
class Trace:
    """Equal on both places but for the written differences."""

    conditions: list[str]
    """Every set of conditions that held, in order: their types."""
    pods: dict[str, list[str]]
    """By worker, its incarnations: how each ended."""
    environments: dict[str, dict[str, str]]
    """By worker, of its last incarnation."""
    left: list[str] = field(default_factory=list)
    """What is still there after the job was deleted."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Self:
        return cls(**plain)


@dataclass(frozen=True)
class Difference:
    """What of one scenario this machine does otherwise, and why it stays so."""

    scenario: str
    what: str
    local: Any
    operator: Any
    why: str


@dataclass(frozen=True)
class Variable:
    """Variables that differ; None: not there."""

    name: str
    local: str | None
    operator: str | None
    why: str
    always: bool = True
    """Whether they differ in every container."""
    passing: bool = False
    """Whether their values depend on the cluster, the image or the pace."""


ENVIRONMENT = [
    Variable(
        "PET_RDZV_ENDPOINT",
        r"127\.0\.0\.1:\d+",
        r"JOB-worker-0:\d+",
        "names of Services do not resolve on this machine: loopback, and a port that is free",
        always=False,
    ),
    Variable("HF_HOME", ANYTHING, "/cache/hf", "the Hub cache of the person who submits, where the check looked, too"),
    Variable("CUDA_VISIBLE_DEVICES", ANYTHING, None, "GPUs are assigned by this; on a cluster by its device plugin"),
    Variable("TRAIN_FUNC_JOB|TRAIN_FUNC_HOME", ANYTHING, None, "by these the processes of a job are found again"),
    Variable(
        "TRAIN_FUNC_GROUP_SECRET",
        ANYTHING,
        None,
        "workers know one another by it; on a cluster by the store's keys",
    ),
    Variable("KUBERNETES_.*", None, ANYTHING, "the API server's own Service; this machine has none", passing=True),
    Variable("CONFORMANCE_PACE", ANYTHING, ANYTHING, "on this machine the scenarios run faster", passing=True),
    Variable(
        "TRAIN_FUNC_MEMORY",
        ANYTHING,
        ANYTHING,
        "without a limit that of the machine, or of the node",
        always=False,
        passing=True,
    ),
    Variable("TRAIN_FUNC_GRACE_SECONDS", r"\d+", r"\d+", "where it is given in paces", always=False),
    Variable(
        r"PATH|PYTHONPATH|LANG|LANGUAGE|LC_\w+|TZ|\w+_CA_BUNDLE|SSL_CERT_\w+|PIP_CERT|GPG_KEY|PYTHON_\w+|"
        r"HF_ENDPOINT|HF_HUB_OFFLINE|OMP_WAIT_POLICY|NVIDIA_\w+|CUDA_\w+|LD_LIBRARY_PATH|(?i:\w+_proxy)",
        ANYTHING,
        ANYTHING,
        "brought along by the image or by this machine",
        always=False,
        passing=True,
    ),
]


def differences(local: Trace, operator: Trace) -> dict[str, tuple[Any, Any]]:
    """What differs but for the environments: (this machine's, operator's) by what it is."""
    found = {}
    for what, (mine, theirs) in _parts(local, operator).items():
        if mine != theirs:
            found[what] = (mine, theirs)
    return found


def _parts(local: Trace, operator: Trace) -> dict[str, tuple[Any, Any]]:
    names = ("conditions", "left")
    workers = sorted({*local.pods, *operator.pods})
    return {
        **{name: (getattr(local, name), getattr(operator, name)) for name in names},
        **{f"pods of worker {worker}": (local.pods.get(worker), operator.pods.get(worker)) for worker in workers},
        "workers with a log": (sorted(local.environments), sorted(operator.environments)),
    }


def strange_variables(local: dict[str, str], operator: dict[str, str]) -> list[str]:
    """Variables of one container that differ although no row of the table says so, or that should and do not."""
    differing = {name for name in {*local, *operator} if local.get(name) != operator.get(name)}
    told = {name for name in differing for row in ENVIRONMENT if _explains(row, name, local, operator)}
    return [f"{name}: {local.get(name)!r} here, {operator.get(name)!r} there" for name in sorted(differing - told)]


def missing_differences(local: dict[str, str], operator: dict[str, str]) -> list[str]:
    """Rows of the table that always differ, and do not in this container."""
    differing = {name for name in {*local, *operator} if local.get(name) != operator.get(name)}
    rows = [row for row in ENVIRONMENT if row.always]
    return [row.name for row in rows if not any(re.fullmatch(row.name, name) for name in differing)]


def _explains(row: Variable, name: str, local: dict[str, str], operator: dict[str, str]) -> bool:
    return (
        re.fullmatch(row.name, name) is not None
        and _is(row.local, local.get(name))
        and _is(row.operator, operator.get(name))
    )


def _is(pattern: str | None, value: str | None) -> bool:
    if pattern is None or value is None:
        return value is None
    return re.fullmatch(pattern, value, re.DOTALL) is not None
