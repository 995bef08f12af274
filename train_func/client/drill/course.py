"""The course of a drill: a fault is caused in a job on purpose, and what the job does about it is measured.

The fault is real: a signal to a process, the deletion of a pod, a folder that is away. A drill waits for the step
that it is meant for, causes the fault, and follows the job until it has done a step beyond all that it had done before.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from train_func.client.display.trace import Point, Trace
from train_func.client.drill.campaign import Campaign
from train_func.client.drill.comparison import compare
from train_func.client.drill.faults import Fault, Injector, injector_of
from train_func.client.drill.report import Comparison, DrillReport, Recovery
from train_func.client.stored_attempts import all_ends
from train_func.client.stored_run import ENDED
from train_func.client.watch import JobLooks, News
from train_func.errors import Cause, InvalidInput
from train_func.text import counted, shown
from train_func.wire import exits
from train_func.wire.records import EndRecord, RunRecord

SILENT_SECONDS = 60.0  # after which an attempt that tells no step counts as training


@dataclass(frozen=True)
class Target(JobLooks):
    """The job that is drilled."""

    end_of: Callable[[RunRecord], str]
    """Waits for the end of a job of this backend; returns its state."""

    def note(self, words: str) -> None:
        """Prints it behind the name of the run."""
        print(shown(f"{self.record.name}: drill: {words}"), flush=True)


class Observer(Trace):
    """The trace of a job, which looks at it when it is asked to."""

    def __init__(self, news: Iterator[News], note: Callable[[str], None]) -> None:
        """Looks at nothing yet; ``note`` prints what hinders the job, or happened to a worker."""
        super().__init__()
        self._news, self._note = news, note

    @property
    def attempt(self) -> int:
        """The number of the newest attempt; 0 before the first one."""
        return self.group.attempt if self.group else 0

    @property
    def is_training(self) -> bool:
        """Returns whether the newest group has done a step, or has been there for long without telling one."""
        group = self.group
        return group is not None and (self.is_stepping or time.time() - group.time > SILENT_SECONDS)

    def until(self, condition: Callable[[], object]) -> bool:
        """Looks until the condition holds; returns False where the job is over before that."""
        while not condition():
            if self.is_over:
                return bool(condition())
            is_first, news = not self.state, next(self._news)
            self.take(news)
            for diagnosis in () if is_first else news.diagnoses:  # what had happened before the drill is no news
                self._note(str(diagnosis))
            if news.failure and news.is_last:
                self._note(str(news.failure))
        return True

    def first_new(self, attempt: int, since: float, done: int = -1) -> Point | None:
        """The first step after ``since``, of this or a later attempt, that had not been done before; None if none was.

        ``since`` is in Unix seconds, by the clock of the worker. ``done``: the last step that was done before, where
        more is known of that than steps tell. For a function that tells no steps it is the step 0 of the next group.
        """
        steps, groups = self.steps, self.groups
        before = [step.step for step in steps if step.attempt < attempt or step.time < since]
        after = [step for step in steps if step.attempt >= attempt and step.time >= since]
        if not steps:
            after = [Point(group.time, group.attempt, 0) for group in groups if group.attempt >= attempt]
        new = [step for step in after if step.step > max([*before, done])]
        return min(new, key=lambda step: step.time, default=None)


def campaign_of(kill: str | Path, **fields: object) -> Campaign:
    """Returns the campaign that is asked for: of one fault with its fields, or that of a file that ends in .json."""
    arguments = {name: value for name, value in fields.items() if value is not None}
    if isinstance(kill, Path) or str(kill).endswith(".json"):
        if arguments:
            names = ", ".join(f"{name}=" for name in arguments)
            raise InvalidInput(f"{names} belongs to one fault; the faults of a campaign have theirs in {kill}")
        return Campaign.read(Path(kill).expanduser())
    return Campaign(faults=(Fault(**{"kill": kill, **arguments}),))  # type: ignore[arg-type]


def drill(target: Target, campaign: Campaign, *, is_compared: bool = False) -> DrillReport:
    """Causes the faults one after the other, and returns the report.

    Raises:
        InvalidInput: a fault cannot be caused here, the job has ended, a step is past, or a victim is not there.
    """
    injector = injector_of(target.backend, target.job, target.store)
    for fault in campaign.faults:
        injector.check(fault)
    trace = Observer(target.news(), target.note)
    trace.until(lambda: trace.state in (*ENDED, "Absent") or (trace.is_current and trace.is_training))
    if trace.is_over or trace.state in (*ENDED, "Absent"):
        raise InvalidInput(
            f"{target.record.name} is {trace.state}: a drill needs a job that trains; submit the run"
            f"{' with fresh=True' if trace.state == 'Succeeded' else ''}, and drill it meanwhile"
        )
    group = trace.group
    assert group is not None  # it trains
    faults = campaign.choose(trace.last_step, trace.num_steps, group.ranks, group.workers)
    first = faults[0].at_step
    if first is not None and first <= trace.last_step:
        raise InvalidInput(
            f"at_step={first}: {target.record.name} has done step {trace.last_step}"
            f"{f' of {trace.num_steps}' if trace.num_steps else ''} already; give a later one, or none: at once"
        )
    recoveries = list[Recovery]()
    for fault in faults:
        injector.check(fault)
        if not trace.until(partial(_is_due, fault, trace)):
            target.note(f"the job is {trace.state}, and {counted(len(faults) - len(recoveries), 'fault')} did not come")
            break
        recoveries.append(_cause(fault, injector, target, trace))
    comparison: Comparison | None = None
    if is_compared:
        trace.until(lambda: False)
        comparison = compare(target.record, trace.state, target.backend, target.store, target.end_of, target.note)
    return DrillReport(
        name=target.record.name,
        state=trace.state,
        recoveries=tuple(recoveries),
        steps=tuple(trace.steps),
        groups=tuple(trace.groups),
        comparison=comparison,
    )


def _is_due(fault: Fault, trace: Observer) -> bool:
    return trace.is_training and (fault.at_step is None or trace.last_step >= fault.at_step)


def _victim(fault: Fault, target: Target, trace: Observer) -> int | None:
    """The rank or worker; None: the last worker that runs.

    Raises InvalidInput where there is none of this number, or nothing could tell that the training goes on.
    """
    group = trace.group
    assert group is not None  # it trains
    if fault.kind.victim == "rank":
        number = group.ranks - 1 if fault.rank is None else fault.rank
        if number >= group.ranks:
            there = f"{counted(group.ranks, 'rank')} at the moment: 0 to {group.ranks - 1}"
            raise InvalidInput(f"rank={number}: {target.record.name} has {there}")
        return number
    workers = target.record.run.workers
    if fault.worker is not None and fault.worker >= workers:
        there = f"{counted(workers, 'worker')}: 0 to {workers - 1}"
        raise InvalidInput(f"worker={fault.worker}: {target.record.name} has {there}")
    if fault.kind.victim == "store" and not trace.steps:
        raise InvalidInput(
            f"kill='store': {target.record.name} tells no steps, so that a drill could not see that it goes on; a "
            "Trainer of train_func tells them, and a loop of your own with session.report(step, loss=...)"
        )
    return fault.worker


def _cause(fault: Fault, injector: Injector, target: Target, trace: Observer) -> Recovery:
    """Causes a fault, and follows the job until it has recovered."""
    attempt, last, victim = trace.attempt, trace.last_step, _victim(fault, target, trace)
    # The attempt that does the first new step; where it is the same one, it is on this machine, and has its clock.
    first = attempt if fault.kind.victim == "store" else attempt + 1
    begun = time.time()
    since = begun if first == attempt else 0.0
    injection = injector.inject(fault, victim)
    try:
        target.note(f"{injection.what}{f', after step {last}' if last else ''}")
        if fault.kind.victim == "store":  # nothing can be looked at meanwhile
            time.sleep(fault.away_seconds)
        elif fault.away_seconds:
            end = time.monotonic() + fault.away_seconds
            trace.until(lambda: trace.first_new(first, since) or time.monotonic() > end)
    finally:
        injection.undo()
    trace.until(lambda: trace.first_new(first, since))
    done = max((end.step for end in _ends(target, attempt) if end.step and end.attempt < first), default=-1)
    trace.until(lambda: trace.first_new(first, since, done))  # a rank that is killed may not have told its last one
    recovery = _measured(fault, injection.what, target, trace, attempt, trace.first_new(first, since, done), begun)
    if recovery.seconds is not None:
        target.note(f"it trains again, {recovery.seconds:.1f} s later")
    return recovery


def _measured(
    fault: Fault, what: str, target: Target, trace: Observer, attempt: int, new: Point | None, begun: float
) -> Recovery:
    """Returns what the fault has cost, by what the workers have told and put on record.

    ``attempt`` trained before the fault, which came at ``begun``, in Unix seconds by the clock of this machine;
    ``new`` is the first new step.
    """
    seconds, elapsed = new.time - begun if new else None, time.time() - begun
    if seconds is not None and not 0 <= seconds <= elapsed:  # the clock of the worker is not that of this machine
        seconds = elapsed
    ends = _ends(target, attempt)
    again = new.attempt if new and new.attempt > attempt else None
    is_over = again is not None or new is None  # the attempt, whose end record has its last step
    told = [step.step for step in trace.steps if step.attempt == attempt and (is_over or step.time < begun)]
    recorded = [end.step for end in ends if end.attempt == attempt and is_over]
    resumption, checkpoint = trace.resumptions.get(again or 0), ""
    if resumption:
        beginning = replace(resumption, last_step=0)  # the report itself tells what is done again
        checkpoint = str(beginning) if resumption.step else f"begins at step 1: {resumption.why}"
    cause, message = _told([end for end in ends if again is None or end.attempt < again], trace, begun)
    return Recovery(
        fault=fault,
        what=what,
        time=begun,
        attempt=attempt,
        last_step=max([*told, *recorded], default=0) or None,
        next_attempt=again,
        workers=next((group.workers for group in trace.groups if group.attempt == again), None),
        resumed_step=resumption.step if resumption else None,
        checkpoint=checkpoint,
        first_step=(new.step or None) if new else None,
        seconds=seconds,
        cause=cause,
        message=message,
    )


def _ends(target: Target, attempt: int) -> list[EndRecord]:
    """Returns how workers ended in this attempt and later ones, as far as that is on record."""
    return [end for end in all_ends(target.store, target.record.keys, []) if end.attempt >= attempt]


def _told(ends: Sequence[EndRecord], trace: Observer, begun: float) -> tuple[Cause | None, str]:
    """The cause that the job has told, and its words: of the worker that failed first, or else of its pod or store."""
    failed = [end for end in ends if end.exit_code not in (exits.DONE, exits.RESIZED)]
    for end in failed:
        if end.root_cause and end.cause:
            return end.cause, f"worker {end.worker}: {end.message}"
    for when, cause, words in trace.incidents:
        if when >= begun:
            return cause, words
    return (failed[0].cause, f"worker {failed[0].worker}: {failed[0].message}") if failed else (None, "")
