"""The report of a drill: what was done, what it cost, whether the job told the right cause; as dict, text, picture."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import zip_longest
from typing import Any

from train_func.client.display.chart import Curve, Flag, Line, Picture, stack
from train_func.client.display.trace import Group, Point, unrepeated
from train_func.client.drill.faults import Fault
from train_func.errors import Cause
from train_func.text import counted, shown

LOSS, WORKERS = 250, 130  # heights of the charts, in pixels


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """One fault, and what came after it."""

    fault: Fault
    what: str
    """What was done."""
    time: float
    """When, Unix seconds."""
    attempt: int
    """That trained then."""
    last_step: int | None
    """The last step that this attempt did; None where the function tells of no steps."""
    next_attempt: int | None = None
    """The one that trained again; None where the same one goes on, or none came."""
    workers: int | None = None
    """Of that one."""
    resumed_step: int | None = None
    """Behind which step it went on; 0: from the beginning; None where nothing tells."""
    checkpoint: str = ""
    """Which checkpoint it took and why, in the words of the worker."""
    first_step: int | None = None
    """The first new step: beyond the last one that was done before."""
    seconds: float | None = None
    """From the fault to that step, or to the next attempt of a function that tells no steps; None where none came.

    The step has the time of its worker; where that cannot be by the clock of this machine, when it was seen here.
    """
    cause: Cause | None = None
    """That the job told; None where it told nothing."""
    message: str = ""
    """In its words."""

    @property
    def steps_lost(self) -> int | None:
        """How many steps were done again; None where that is not known."""
        if self.last_step is None or self.seconds is None:
            return None
        if self.next_attempt is None:
            return 0
        return None if self.resumed_step is None else max(0, self.last_step - self.resumed_step)

    @property
    def has_right_cause(self) -> bool:
        """Returns whether the cause that was told is one of this fault."""
        return self.cause in self.fault.causes

    @property
    def label(self) -> str:
        """The fault and its cost in a few words."""
        again = f", {counted(self.steps_lost, 'step')} again" if self.steps_lost else ""
        return f"{self.fault}: {'no step came' if self.seconds is None else f'{self.seconds:.1f} s'}{again}"

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        facts = {name: value for name, value in vars(self).items() if name != "fault"}
        when = datetime.fromtimestamp(self.time).astimezone().isoformat(timespec="milliseconds")
        judged = {"steps_lost": self.steps_lost, "expected_causes": list(self.fault.causes)}
        return {"fault": self.fault.to_dict(), **facts, "time": when, **judged, "has_right_cause": self.has_right_cause}

    def __str__(self) -> str:
        when = datetime.fromtimestamp(self.time).astimezone()
        behind = f", after step {self.last_step}" if self.last_step is not None else ""
        then, cost = "no step came any more", "all that was not saved"
        if self.seconds is not None:
            checkpoint = self.checkpoint or "tells no checkpoint that it goes on from"
            then = f"attempt {self.next_attempt}, with {counted(self.workers or 0, 'worker')}, {checkpoint}"
            if self.next_attempt is None:
                then = "the same attempt goes on"
            lost = "steps unknown" if self.steps_lost is None else f"{counted(self.steps_lost, 'step')} done again"
            what = f"step {self.first_step}, the first new one," if self.first_step else f"attempt {self.next_attempt}"
            cost = f"{lost}; {what} came after {self.seconds:.1f} s"
        expected = " or ".join(self.fault.causes)
        verdict = "as it was" if self.has_right_cause else f"and it was {expected}"
        cause = f"{self.cause}, {verdict}: {self.message.partition(chr(10))[0]}"
        if self.cause is None:
            cause = f"nothing ({expected} is what was done)"
        lines = [
            ("did", f"at {when:%H:%M:%S}, in attempt {self.attempt}{behind}: {self.what}"),
            ("then", then),
            ("cost", cost),
            ("told", cause),
        ]
        return "\n".join(f"  {name}  {words}" for name, words in lines)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The result beside that of the same Run, undisturbed."""

    run: str
    """The name of the undisturbed run."""
    is_same: bool | None
    """Whether the weights are the same, by SHA-256; None where there are none to compare."""
    weights: dict[str, tuple[str | None, str | None]]
    """SHA-256 of each file of weights: of this run, and of the undisturbed one."""
    losses: tuple[float | None, float | None]
    """The last that each of the two told; None where it told none."""
    message: str
    """The verdict in words."""


@dataclass(frozen=True, kw_only=True, repr=False)
class DrillReport:
    """What a drill has shown. ``print`` shows its text, ``picture()`` the curve of the training."""

    name: str
    """Of the run."""
    state: str
    """Of the job, at the end of the drill."""
    recoveries: Sequence[Recovery]
    """The faults, in their order, each with what came after it."""
    steps: Sequence[Point]
    """As they were done, also those that were done again."""
    groups: Sequence[Group]
    """Those of the attempts."""
    comparison: Comparison | None = None
    """None where no comparison was asked for."""

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        return {
            "name": self.name,
            "state": self.state,
            "recoveries": [recovery.to_dict() for recovery in self.recoveries],
            "comparison": vars(self.comparison) if self.comparison else None,
            "steps": [vars(step) for step in self.steps],
            "groups": [vars(group) for group in self.groups],
        }

    def picture(self, *earlier: "DrillReport") -> Picture:
        """Returns the loss and the number of workers over time as SVG; a cell shows it, ``str`` is its text.

        A fault for whose words there is no room is a line that tells them to a mouse. ``earlier``: reports of the same
        training, whose faults are marked too.
        """
        faults = [recovery for report in (*earlier, self) for recovery in report.recoveries]
        times = [step.time for step in self.steps] + [group.time for group in self.groups]
        times = [*times, *(fault.time for fault in faults)] or [0.0]
        begin, end = min(times), max(times)
        marks = [Flag(fault.time - begin, fault.label) for fault in faults]
        workers = list(self._workers(begin, end, [fault.time for fault in faults]))
        return stack(self.name, [(LOSS, self._losses(begin), marks), (WORKERS, workers, ())], unit="s")

    def _losses(self, begin: float) -> list[Line]:
        """Returns a line for each attempt, with a gap before the next, and one for its steps that were done again."""
        once = {id(step) for step in unrepeated(self.steps, {})}
        curves: dict[tuple[bool, int], Curve] = {(True, 0): []}  # a chart without losses has its name too
        for step in sorted(self.steps, key=lambda step: step.time):
            if step.loss is not None and math.isfinite(step.loss):
                curves.setdefault((id(step) in once, step.attempt), []).append((step.time - begin, step.loss))
        names, newest = {True: "loss", False: "loss of steps done again"}, dict(sorted(curves))
        return [
            Line(names[is_once] if attempt == newest[is_once] else "", curve, place=0 if is_once else 1)
            for (is_once, attempt), curve in sorted(curves.items(), reverse=True)
        ]

    def _workers(self, begin: float, end: float, faults: Sequence[float]) -> Iterator[Line]:
        """Returns a box for each group: from its start to the fault that ended it, or to the next group."""
        groups = sorted(self.groups, key=lambda group: group.attempt)
        for group, following in zip_longest(groups, groups[1:]):
            size, start, stop = group.workers, group.time, end
            if following:
                stop = max((time for time in faults if start <= time < following.time), default=following.time)
            corners = [(start, 0), (start, size), (stop, size), (stop, 0 if following else size)]
            yield Line("" if following else "workers", [(time - begin, number) for time, number in corners], place=0)

    def __str__(self) -> str:
        lines = [f"{self.name}: {counted(len(self.recoveries), 'fault')}; the job is {self.state}"]
        for number, recovery in enumerate(self.recoveries, start=1):
            at_step = f" at step {recovery.fault.at_step}" if recovery.fault.at_step else ""
            lines += [f"{number}. {recovery.fault}{at_step}", str(recovery)]
        if self.comparison:
            lines.append(f"compared with {self.comparison.run}: {self.comparison.message}")
        return shown("\n".join(lines))

    __repr__ = __str__
