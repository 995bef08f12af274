"""The faults of a drill: what each does, to whom, by which signals, and which cause the job should tell for it.

A backend causes them by an Injector; ``INJECTORS`` names the modules that have one.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from train_func.client.backend import Backend, BoundJob, name_of_backend
from train_func.errors import Cause, InvalidInput
from train_func.fields import NamedFields, brief, field_names, is_number, meant, whole_fault
from train_func.storage import Store

LONGEST_SECONDS = 3600.0  # longest that a store or a node is away


@dataclass(frozen=True)
class FaultKind:
    """A kind of fault."""

    victim: Literal["rank", "worker", "store"]
    signals: Mapping[str, tuple[Cause, ...]]
    """The causes that a job may tell for it, by the signal that is sent; the first signal is the default."""
    seconds: float = 0.0
    """Seconds for which something is away at most; 0 where nothing comes back."""


_OF_RANK: dict[str, tuple[Cause, ...]] = dict.fromkeys(("KILL", "TERM", "INT", "ABRT", "SEGV", "BUS"), ("killed",))
KINDS: Mapping[str, FaultKind] = {
    "rank": FaultKind("rank", _OF_RANK),
    "worker": FaultKind("worker", {"KILL": ("killed",), "TERM": ("preemption",)}),
    "pod": FaultKind("worker", {"KILL": ("preemption", "killed"), "TERM": ("preemption",)}),
    "node": FaultKind("worker", {"TERM": ("preemption",)}, seconds=30.0),
    "hang": FaultKind("rank", {"STOP": ("hang",)}),
    "store": FaultKind("store", {"": ("storage",)}, seconds=10.0),
}


@dataclass(frozen=True, kw_only=True)
class Fault(NamedFields):
    """A fault that is caused on purpose.

    Raises:
        InvalidInput: naming every field that cannot work, what it was and what it may be.
    """

    kill: str
    """``rank``, ``worker``, ``pod``, ``node``, ``hang`` or ``store``."""
    rank: int | None = None
    """The rank that is killed, or hangs; default: the last one."""
    worker: int | None = None
    """The worker that is killed, whose pod is deleted or whose node is drained; default: the last one."""
    at_step: int | None = None
    """Step after which it happens; default: at once, when the job trains."""
    signal: str | None = None
    """``KILL`` or ``TERM``; of a rank also ``INT``, ``ABRT``, ``SEGV`` and ``BUS``."""
    seconds: float | None = None
    """Seconds for which the store, or at most the node, is away; default: 10 and 30."""

    def __post_init__(self) -> None:
        if not isinstance(self.kill, str) or self.kill not in KINDS:
            close = meant(str(self.kill), [*KINDS], "faults")
            raise InvalidInput(f"kill={brief(self.kill)}: {close} A campaign is a file that ends in .json")
        kind, faults = KINDS[self.kill], list[str | None]()
        for name, value in (("rank", self.rank), ("worker", self.worker)):
            if value is not None and kind.victim != name:
                takes = ", ".join(repr(other) for other, each in KINDS.items() if each.victim == name)
                faults.append(f"{name}={brief(value)}: kill={self.kill!r} takes no {name}; these do: {takes}")
            elif value is not None:
                faults.append(whole_fault(name, value, 0))
        if self.at_step is not None:
            faults.append(whole_fault("at_step", self.at_step, 1))
        if self.signal is None:
            object.__setattr__(self, "signal", next(iter(kind.signals)))
        elif self.signal not in kind.signals:
            allowed = ", ".join(filter(None, kind.signals)) or "none"
            faults.append(f"signal={brief(self.signal)}: kill={self.kill!r} takes {allowed}")
        if self.seconds is None:
            object.__setattr__(self, "seconds", kind.seconds)
        elif not (kind.seconds and is_number(self.seconds) and 0 < self.seconds <= LONGEST_SECONDS):
            takes = (
                f"up to {LONGEST_SECONDS:.0f} are expected"
                if kind.seconds
                else "only 'store' and 'node' are away for a time"
            )
            faults.append(f"seconds={brief(self.seconds)}: {takes}")
        if known := [fault for fault in faults if fault]:
            raise InvalidInput(known)

    @property
    def kind(self) -> FaultKind:
        """What its name stands for."""
        return KINDS[self.kill]

    @property
    def causes(self) -> tuple[Cause, ...]:
        """The causes of which the job should tell one."""
        return self.kind.signals[self.signal or ""]

    @property
    def away_seconds(self) -> float:
        """Seconds for which something is away at most."""
        return self.seconds or 0.0

    def to_dict(self) -> dict[str, Any]:
        """The fields that say something, as plain JSON values."""
        return {name: value for name in field_names(Fault) if (value := getattr(self, name)) not in (None, "", 0.0)}

    def __str__(self) -> str:
        victim = self.rank if self.kind.victim == "rank" else self.worker
        return f"{self.kill}{'' if victim is None else f' {victim}'}"


@dataclass(frozen=True)
class Injection:
    """A fault that has been caused."""

    what: str
    """What was done, in words that follow "drill: "."""
    undo: Callable[[], None] = field(default=lambda: None)
    """Brings back what is away; to be called once, whatever happens."""


class Injector(Protocol):
    """Causes faults in one job."""

    def check(self, fault: Fault) -> None:
        """Raises InvalidInput where the fault cannot be caused here, or by this account; causes nothing."""

    def inject(self, fault: Fault, victim: int | None) -> Injection:
        """Causes the fault now; raises InvalidInput where the victim is not there any more.

        ``victim``: a rank or a worker; None: the last worker that runs.
        """


INJECTORS = {"Local": "train_func.client.drill.machine_faults", "Cluster": "train_func.client.drill.cluster_faults"}


def injector_of(backend: Backend, job: BoundJob, store: Store) -> Injector:
    """The injector for a job of this backend; raises InvalidInput where none is known."""
    name = name_of_backend(backend)
    if name not in INJECTORS:
        raise InvalidInput(f"job.drill: {name}() causes no faults; a job of {' or '.join(INJECTORS)} is expected")
    injector: Injector = importlib.import_module(INJECTORS[name]).injector(job, store)
    return injector
