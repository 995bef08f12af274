"""The panel: what is shown of a job at one moment, in words and numbers; html and terminal draw it.

Every state has a sign and a word, so that nothing is told by colour alone.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from train_func.client.backend import name_of_backend
from train_func.client.display.chart import Flag, Line, by_metric
from train_func.client.display.trace import Trace, WorkerState, seconds_of
from train_func.client.stored_run import submission_time
from train_func.client.watch import JobLooks
from train_func.text import counted, cut, listed, shown, sized
from train_func.wire.events import Alert, RowsAudited

SIGNS = {
    "Created": "◌",
    "Pending": "◌",
    "Running": "●",
    "Restarting": "↻",
    "Suspended": "‖",
    "Succeeded": "✓",
    "Failed": "✗",
    "Cancelled": "■",
    "Interrupted": "✗",
}
STOPPED = "○"  # before what a frame says that is no longer updated
EPOCH = "epoch="  # of the audit of a training
ROUNDING = 0.005  # of the epochs in which a training is
COLUMNS = ("worker", "phase", "node", "restarts", "memory", "does")
MOST_MARKS = 60  # checkpoints in a chart, the newest
MOST_RESTARTS, MOST_ALERTS, MOST_NOTES = 3, 3, 3  # told one by one, the newest
MOST_ROWS = 12  # workers one by one
MOST_NUMBERS = 12  # of metrics without a chart, and of the result
LONGEST = 120  # characters of what a worker does, or of a value of the result


@dataclass(frozen=True)
class Subject:
    """The job that is shown."""

    name: str
    """Of the run."""
    function: str
    place: str
    """Where the job is, such as ``Local``."""
    submitted: datetime | None
    num_workers: int
    printed_notes: frozenset[str] = frozenset()
    """Notes that the submission has printed."""
    generation: int = 1
    """Of the run."""

    @classmethod
    def of(cls, looks: JobLooks, printed_notes: frozenset[str] = frozenset()) -> "Subject":
        """Returns the job that is looked at; ``printed_notes`` stand beside the panel already."""
        record, submitted = looks.record, submission_time(looks.store, looks.record.keys)
        begun = datetime.fromisoformat(submitted) if submitted else None
        place, workers = name_of_backend(looks.backend), record.run.workers
        return cls(record.name, record.function, place, begun, workers, printed_notes, record.generation)


@dataclass(frozen=True, kw_only=True)
class Panel:
    """What is shown of a job at one moment."""

    state: str
    """Its sign and its word."""
    heading: Sequence[str]
    """Its name first."""
    share: float | None
    """How much of the training is done, from 0 to 1; None where that is not known."""
    progress: Sequence[str]
    warnings: Sequence[str]
    """What it waits for, or why it is slow, and what to do about that."""
    charts: Sequence[Sequence[Line]]
    """The curves of each metric, the losses first; of metrics with one value they have one point."""
    marks: Sequence[Flag]
    """Checkpoints and restarts, for the charts."""
    last_step: float
    """Of the training, where it may go so far; 0 where that is not known."""
    workers: Sequence[Sequence[str]]
    """The cells of COLUMNS."""
    num_more_workers: int
    """That are not among them, because they are many and simply run."""
    facts: Sequence[str]
    printed: Sequence[str]
    """The last lines of rank 0."""
    error: str
    """Why it failed, or will not go on; empty where that is not so."""

    def __str__(self) -> str:
        newest = (f"{line.name} {line.points[-1][1]:.4g}" for lines in self.charts for line in lines)
        lines = ["  ".join([self.state, *self.heading]), " · ".join([*self.progress, *newest]), *self.warnings]
        lines += ["  ".join(("worker", *cells)).rstrip() for cells in self.workers]
        lines += [f"and {self.num_more_workers} more"] if self.num_more_workers else []
        return shown("\n".join(filter(None, [*lines, *self.facts, *self.printed, self.error])))


def panel_of(
    subject: Subject,
    trace: Trace,
    explanation: str = "",
    *,
    result: Mapping[str, Any] | None = None,
    silence: str = "",
    is_stopped: bool = False,
    now: datetime | None = None,
) -> Panel:
    """Returns what is shown of a job at the moment ``now``; ``is_stopped``: in the last frame, though the job goes on.

    ``explanation`` says why it failed, as the error of ``Job.result`` does. ``silence`` says that nothing was new for a
    while, and how a person learns what the ranks do.
    """
    state = trace.state or "Created"
    workers, num_more = _workers(trace.workers())
    hindrances = [] if trace.failure else [str(hindrance) for hindrance in trace.hindrances]
    step = trace.last_step
    if state == "Running" and hindrances and not trace.is_stepping:
        state = "Waiting"  # the backend's word says only that a worker runs
    now = now or datetime.now(UTC)
    progress = _progress(trace, is_last=is_stopped or trace.is_over)
    slowness = trace.measured.slowness if trace.measured else ""
    stopped = f"{STOPPED} stopped watching at {now.astimezone():%H:%M:%S}"
    return Panel(
        state=", ".join([stopped, *progress[:1]]) if is_stopped else f"{SIGNS.get(state, '◌')} {state}",
        heading=_heading(subject, trace, now, state if is_stopped else ""),
        share=min(1.0, step / trace.num_steps) if trace.num_steps else None,
        progress=progress,
        warnings=[
            *hindrances,
            *([slowness] if slowness and trace.state == "Running" and not trace.is_over else []),
            *(str(alert) for alert in trace.alerts if _lasts(alert, trace)),
            *([silence] if silence else []),
        ],
        charts=by_metric(trace.curves()),
        marks=[*_checkpoints(trace), *_restarts(trace)],
        last_step=0.0 if state == "Succeeded" else float(trace.num_steps or 0),
        workers=[_cells(worker) for worker in workers],
        num_more_workers=num_more,
        facts=[*_facts(trace, subject.printed_notes), *_result(result or {})],
        printed=list(trace.printed),
        error=explanation or (str(trace.failure) if trace.failure else ""),
    )


def duration(seconds: float) -> str:
    """Returns a time in its two largest units, such as ``3 min 20 s``."""
    left = max(0, round(seconds))
    units = [("d", left // 86400), ("h", left // 3600 % 24), ("min", left // 60 % 60), ("s", left % 60)]
    first = next((place for place, (_, number) in enumerate(units) if number), 3)
    return " ".join(f"{number} {unit}" for unit, number in units[first : first + 2] if number or first == 3)


def _heading(subject: Subject, trace: Trace, now: datetime, state: str) -> list[str]:
    """Returns the words above the bar; ``state`` is that of the job where no other line tells it, or empty."""
    status = trace.snapshot.status
    num_workers, num_running = (status and status.workers) or subject.num_workers, len(trace.snapshot.running)
    size = counted(num_workers, "worker")
    if trace.state == "Running" and num_running < num_workers:
        size = f"{num_running} of {size}"
    words = [subject.name, f"{subject.function}() on {subject.place}", size]
    if subject.generation > 1:
        words.append(f"generation {subject.generation}")
    if trace.group and trace.group.attempt > 1:
        words.append(f"attempt {trace.group.attempt}")
    end = datetime.fromtimestamp(trace.last_event, UTC) if trace.is_over and trace.last_event else now
    times = [] if subject.submitted is None else [duration((end - subject.submitted).total_seconds())]
    if not trace.is_over:  # a page that was loaded again, or a saved notebook, shows a frame that is no longer new
        times.append(f"{f'{state} ' if state else ''}as of {now.astimezone():%d %b %H:%M:%S %Z}")
    return [*words, " · ".join(times)]


def _progress(trace: Trace, *, is_last: bool = False) -> list[str]:
    progress, step = trace.progress, trace.last_step
    if progress is None:
        return [f"step {step:,}"] if trace.steps else []
    words = [f"step {step:,} of {progress.num_steps:,}"]
    if not trace.is_stepping:
        return words  # what an attempt was like that has ended is no news
    words += [f"epoch {trace.epoch:.2f}", f"{progress.rows_per_second:,.4g} rows/s"]
    if not is_last and step < progress.num_steps and progress.seconds_left is not None:
        words.append(f"about {duration(progress.seconds_left)} left")
    return words


def _lasts(alert: Alert, trace: Trace) -> bool:
    """Returns whether an alert is of the attempt that runs, and no step has ended it, as one ends a stall."""
    if trace.state != "Running" or trace.is_over:
        return False
    when = seconds_of(alert)
    begun = trace.group.time if trace.group else 0.0
    goes_on = alert.kind == "stall" and trace.steps and trace.steps[-1].time > when
    return when >= begun and not goes_on


def _checkpoints(trace: Trace) -> list[Flag]:
    """The newest checkpoints of the training that is drawn."""
    drawn = trace.training
    return [Flag(save.step) for training, save in trace.saves if training == drawn][-MOST_MARKS:]


def _restarts(trace: Trace) -> Iterator[Flag]:
    """The beginnings of attempts but the first in the training that is drawn, with their sizes where these changed."""
    groups, drawn = sorted(trace.groups, key=lambda group: group.attempt), trace.training
    begun = {attempt: step - 1 for (training, attempt), step in trace.first_steps.items() if training == drawn}
    begun |= {of: last.step for of, last in trace.resumptions.items() if trace.trainings.get(of, 0) == drawn}
    for before, group in pairwise(group for group in groups if group.attempt in begun):
        words = f"attempt {group.attempt}"
        if group.workers != before.workers:
            words = f"{before.workers} → {counted(group.workers, 'worker')}"
        yield Flag(begun[group.attempt], words)


def _workers(workers: Sequence[WorkerState]) -> tuple[list[WorkerState], int]:
    """The workers that are shown: all of them if they are few, or else those that do not simply run; how many more."""
    ordered = sorted(workers, key=lambda each: (each.phase in ("Running", "Succeeded"), -each.restarts, each.worker))
    return sorted(ordered[:MOST_ROWS], key=lambda each: each.worker), len(ordered[MOST_ROWS:])


def _cells(worker: WorkerState) -> tuple[str, ...]:
    phase = f"{SIGNS.get(worker.phase, '–')} {worker.phase}"
    memory = sized(worker.memory) if worker.memory else "–"
    if worker.memory and worker.limit:
        memory += f" of {sized(worker.limit)}"
    restarts = str(worker.restarts or "–")
    if worker.restarts and worker.losses:  # after a loss the ranks of all workers begin again
        restarts += " (the cause)" if worker.losses >= worker.restarts else f" (cause of {worker.losses})"
    return str(worker.worker), phase, worker.node or "–", restarts, memory, cut(worker.activity, LONGEST)


def _facts(trace: Trace, printed_notes: Collection[str]) -> Iterator[str]:
    if trace.saves:
        _, save = trace.saves[-1]
        yield f"▲ newest checkpoint: step {save.step:,}, {sized(save.size)}, saved in {save.seconds:.1f} s"
    yield from audits_in_words(trace.audits.values(), trace.epoch, is_over=trace.is_over)
    for attempt in sorted(group.attempt for group in trace.groups)[1:][-MOST_RESTARTS:]:
        reason = trace.reason(attempt)
        words = [f"↻ attempt {attempt}", reason and f"({reason})", _beginning(trace, attempt)]
        yield " ".join(filter(None, words))
    for alert in [alert for alert in trace.alerts if not _lasts(alert, trace)][-MOST_ALERTS:]:
        yield f"! {alert.message}"
    for note in [note for note in trace.notes if note not in printed_notes][-MOST_NOTES:]:
        yield f"note: {note}"
    if trace.published:
        yield f"✓ published: {trace.published.model or 'the result'}"


def _result(result: Mapping[str, Any]) -> Iterator[str]:
    """The numbers and words of a result in one line, without its lists and tables."""
    values = {name: value for name, value in result.items() if not isinstance(value, (list, Mapping))}
    words = [f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in values.items()]
    if words:
        yield f"✓ result: {listed([cut(each, LONGEST) for each in words], MOST_NUMBERS)}"


def _beginning(trace: Trace, attempt: int) -> str:
    """Returns where an attempt began; empty while it has not said so."""
    resumption = trace.resumptions.get(attempt)
    if resumption is None:
        return ""
    again = f"; {resumption.repeated}" if resumption.repeated else ""
    if resumption.step:
        return f"resumed from the checkpoint of step {resumption.step:,}{again}"
    return f"began at step 1: {resumption.why}{again}"


def audits_in_words(audits: Collection[RowsAudited], epoch: float = math.inf, *, is_over: bool = True) -> Iterator[str]:
    """One tick for the epochs in which each row was used exactly once, one for other rows, and what was not so.

    Epochs behind ``epoch``, where the training is, are of an attempt whose steps are lost.
    """
    exact = [audit for audit in audits if is_exact(audit)]
    epochs = [audit for audit in exact if audit.what.startswith(EPOCH)]
    numbers = [int(audit.what.removeprefix(EPOCH)) for audit in epochs]
    numbers = [number for number in numbers if number <= epoch + ROUNDING]
    if numbers:
        which = f"epochs {min(numbers)} to {max(numbers)}" if len(numbers) > 1 else f"epoch {numbers[0]}"
        done = 0 if is_over or math.isinf(epoch) else int(epoch + ROUNDING)  # whose rows are counted behind its end
        rest = f" (epoch {done} not counted yet)" if done > max(numbers) else ""
        yield f"✓ audit: each of {epochs[-1].counts['rows']:,} rows was used exactly once in {which}{rest}"
    for audit in exact:
        if audit.what == "tried_before_training":
            yield f"✓ evaluation tried on {audit.counts['rows']:,} rows before training"
        elif audit not in epochs:
            what = audit.what.replace("_", " ")
            yield f"✓ audit: each of {audit.counts['rows']:,} rows was measured exactly once ({what})"
    for audit in audits:
        if audit not in exact:
            yield f"✗ {audit}"


def is_exact(audit: RowsAudited) -> bool:
    """Returns whether each row was used exactly once."""
    once = [number for name, number in audit.counts.items() if name.endswith("_once")]
    return once == [audit.counts.get("rows")]
