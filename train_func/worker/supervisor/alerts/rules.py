"""The rules of alerts: takes events, and returns alerts. Has no side effects, and loads no torch.

Each occasion makes one alert, and alerts of one kind are at least SAME_KIND_SECONDS apart, so that a job that starts
again and again does not fill a channel. A new attempt has no occasions.

A stall is rank 0 without a sign of progress for STALL of the time after which that is a hang, in the phases in which a
hang is judged; or a wait for the store or for other workers of WAIT_SECONDS.
"""

import math
import re
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

from train_func.wire import exits
from train_func.wire.events import (
    Alert,
    AlertKind,
    AttemptStarts,
    Evaluated,
    Event,
    Reported,
    StepProgress,
    WaitsForPeers,
    WaitsForStore,
    WorkersMeasured,
)
from train_func.wire.records import Verdict
from train_func.worker.rank.marks import Mark
from train_func.worker.supervisor.alerts.curve import WARM_UP, LossCurve

SAME_KIND_SECONDS = 60.0  # between two alerts of one kind
STALL = 0.5  # of the time after which a rank without progress hangs
WAIT_SECONDS = 300.0  # for the store or the others, before it is a stall
WAIT_OVER_SECONDS = 60.0  # after which a wait that was not told again is over
LONGEST_LOOK = 1.0  # seconds that count between two looks: for more, this machine stood still
MOST_METRICS = 8  # of a success
LEARNING_RATE = "see whether the learning rate is too high: a third of it is a common try"
OVERFITS = "the model may learn its training rows by heart: train for fewer epochs, or on more rows"


class AlertRules:
    """The rules of one lead; not for several threads at once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock``: monotonic seconds, as those of marks."""
        self._clock = clock
        self._step = self._num_steps = 0
        self._curves: dict[str, LossCurve] = {}
        self._occasions: set[Hashable] = set()  # of this attempt
        self._times: dict[AlertKind, float] = {}  # of the last alert of each kind
        self._waits: dict[type[Event], tuple[float, float]] = {}  # first and last notice
        self._mark, self._looked, self._silent = 0, clock(), 0.0

    def hear(self, event: Event) -> list[Alert]:
        """Returns the alerts of an event."""
        return [*self._hear(event)]

    def look(self, mark: Mark, hang_after: float) -> list[Alert]:
        """Returns the alert of a stall of rank 0; called several times a second while the ranks run.

        Args:
            mark: its last sign of progress.
            hang_after: seconds without one after which it hangs.
        """
        now = self._clock()
        passed, self._looked = min(now - self._looked, LONGEST_LOOK), now
        self._silent += passed
        if mark.number != self._mark:
            self._mark, self._silent = mark.number, 0.0
            self._occasions.discard(("stall", "rank 0"))
        if not mark.is_watched or self._silent < STALL * hang_after:
            return []
        message = (
            f"rank 0 makes no progress for {self._silent:.0f} s in {mark.phase.words}, after step {mark.step}; "
            f"after {hang_after:g} s the attempt ends, and the next one begins"
        )
        remedy = (
            "job.watch() shows what each worker does; where a step may take so long, Run(hang_after=...) allows more"
        )
        return [*self._give("stall", "rank 0", message, remedy)]

    def end(self, verdict: Verdict, root: Verdict) -> list[Alert]:
        """Returns the alert of an attempt that ends without a result.

        Args:
            verdict: the verdict on the lead.
            root: the verdict on the worker whose end came first.
        """
        if root.exit_code == exits.STOPPED:
            message = f"worker {root.worker}: {root.message}"
            remedy = "an evicted worker is started again; after cancel() or the deadline, submit the run again"
            return [*self._give("stop", "end", message, remedy)]
        if verdict.retryable or verdict.exit_code in (exits.DONE, exits.FENCED):
            return []
        why = verdict if root.retryable else root
        remedy = "job.result() raises the whole error, with what to do next"
        return [*self._give("failed", "end", f"failed ({why.cause}): {why.message}", remedy)]

    def succeed(self, metrics: Mapping[str, Any]) -> list[Alert]:
        """Returns the alert of a run that has its result."""
        numbers = [
            f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in metrics.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        ]
        return [*self._give("succeeded", "end", ", ".join(["succeeded", *numbers[:MOST_METRICS]]))]

    def _hear(self, event: Event) -> Iterator[Alert]:
        match event:
            case AttemptStarts():
                self._occasions, self._curves, self._step = set(), {}, event.step
                if event.position > 1:
                    yield from self._give("restart", "begin", _restart(event))
            case StepProgress():
                self._step, self._num_steps = event.step, event.num_steps
                if event.loss is not None and (event.is_row or not math.isfinite(event.loss)):
                    yield from self._judge("loss", event.step, event.loss)
            case Reported():
                self._step = event.step
                for name, value in event.metrics.items():
                    yield from self._judge(name, event.step, value)
            case Evaluated():
                for name, value in event.metrics.items():
                    yield from self._judge(f"{event.prefix}_{name}", event.step, value, OVERFITS)
            case WorkersMeasured() if event.slow_rank is not None:
                yield from self._give("straggler", (event.slow_part, event.slow_worker), event.message, event.remedy)
            case WaitsForPeers() | WaitsForStore():
                yield from self._wait(event)

    def _judge(self, name: str, step: int, value: object, rises: str = LEARNING_RATE) -> Iterator[Alert]:
        """Yields the alerts of a metric. ``rises``: the remedy of a rising loss."""
        if "loss" not in re.split(r"[\W_]+", name.lower()) or not isinstance(value, (int, float)):
            return
        curve = self._curves.get(name)
        if curve is None or step <= curve.step:  # another training, as of the next fold
            curve = self._curves[name] = LossCurve()
            self._occasions -= {("loss_rises", name), ("loss_not_finite", name)}
        if not math.isfinite(value):
            curve.step = step
            remedy = f"{LEARNING_RATE}; or whether a row holds such a value, or a division by zero makes one"
            yield from self._give("loss_not_finite", name, f"{name} is {value} at step {step}", remedy)
            return
        if not curve.add(step, value):
            return
        if rise := curve.rise(is_warm_up=step < WARM_UP * self._num_steps):
            message = f"{name} rises: {rise.last:.4g} by step {step}, after {rise.lowest:.4g} by step {rise.step}"
            yield from self._give("loss_rises", name, message, rises)

    def _wait(self, event: WaitsForPeers | WaitsForStore) -> Iterator[Alert]:
        now, kind = self._clock(), type(event)
        first, last = self._waits.get(kind, (now, now))
        if now - last > WAIT_OVER_SECONDS:
            first = now
        self._waits[kind] = first, now
        if now - first >= WAIT_SECONDS:
            message = f"for {(now - first) / 60:.0f} minutes: {event}"
            remedy = "job.watch() shows which worker is missing, and why" if kind is WaitsForPeers else ""
            yield from self._give("stall", (kind, first), message, remedy)

    def _give(self, kind: AlertKind, occasion: Hashable, message: str, remedy: str = "") -> Iterator[Alert]:
        """Yields the alert, unless the occasion had one, or the kind had one less than SAME_KIND_SECONDS ago."""
        now = self._clock()
        if (kind, occasion) in self._occasions or now - self._times.get(kind, -math.inf) < SAME_KIND_SECONDS:
            return
        self._occasions.add((kind, occasion))
        self._times[kind] = now
        yield Alert(kind=kind, message=message, remedy=remedy, step=self._step)


def _restart(event: AttemptStarts) -> str:
    why = event.after or "the previous attempt left no record (its workers may have been killed)"
    where = f" after step {event.step}" if event.step else ""
    return f"attempt {event.attempt} starts{where}: {why}; {event.allowed}"
