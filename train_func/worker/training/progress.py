"""Progress: how far a training is, and the losses of a Trainer, said now and then.

A line of progress comes by the clock, a row of the history by the number of its step: the same run has the same rows on
a fast machine and on a slow one. The first step of an attempt has both.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import SupportsFloat

import torch

from train_func.wire.events import StepProgress
from train_func.worker.rank import world

INTERVAL = 5.0  # seconds between two lines, at least
FIRST_ETA = 5  # steps of an attempt, before it is told how long the rest takes
MOST_ROWS = 1000  # of the history of a training, about; more where logging_steps asks for them
MOST_POINTS = 20  # of the curve in one line


@dataclass
class Losses:
    """Sums up the losses of steps for transformers' logs."""

    since_log: torch.Tensor
    total: float = 0.0
    """The sum before the last log."""
    step: int = 0
    """The step that was logged last."""

    def mean_since_log(self, step: int) -> float:
        """Returns the mean since the last log, which is that of ``step`` from now on."""
        since = self.since_log.item()
        mean = since / (step - self.step)
        self.since_log.zero_()
        self.total, self.step = self.total + since, step
        return mean

    def mean(self, num_steps: int) -> float:
        """Returns the mean of all losses."""
        return (self.total + self.since_log.item()) / max(num_steps, 1)

    def kept(self) -> dict[str, float]:
        """Returns the sums as a checkpoint keeps them."""
        return {"since_log": self.since_log.item(), "total": self.total, "step": self.step}

    def restore(self, sums: Mapping[str, float]) -> None:
        """Puts back what ``kept`` returned."""
        self.since_log.fill_(sums["since_log"])
        self.total, self.step = sums["total"], int(sums["step"])


class Progress:
    """Times the training steps, evaluations left out, and says now and then where it is."""

    def __init__(
        self,
        num_steps: int,
        logging_steps: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``logging_steps``: there is a row for every so many steps at least; 0: for as many as make MOST_ROWS."""
        self.num_steps = num_steps
        thinned = math.ceil(num_steps / MOST_ROWS)
        self._every = min(thinned, logging_steps or thinned)
        self._clock = clock
        self._started = self._said = self._first = clock()
        self._steps = self._rows = 0
        self._row_losses: list[float] = []
        self._line_steps: list[tuple[int, float, float | None]] = []  # step, when it ended, its loss

    def leave_out(self, seconds: float) -> None:
        """Leaves out time that was no training."""
        self._started += seconds
        self._first += seconds

    def step(
        self,
        step: int,
        epoch: float,
        num_rows: int,
        loss: float | None = None,
        rate: float | None = None,
        grad_norm: SupportsFloat | None = None,
    ) -> None:
        """Is called after a step.

        Args:
            step: its number, from 1.
            epoch: how many are done, with the part of the one that the step belongs to.
            num_rows: of all ranks in it.
            loss: their mean; None where it is not known, and the history has no row of the step.
            rate: the learning rate that it takes; None where it is not known.
            grad_norm: the length of its gradient; None where it is not known.
        """
        now = self._clock()
        self._steps += 1
        self._rows += num_rows
        if loss is not None:
            self._row_losses.append(loss)
        self._line_steps.append((step, now, loss))
        is_line = now - self._said >= INTERVAL or self._steps == 1 or step == self.num_steps
        is_due = self._steps == 1 or step == self.num_steps or step % self._every == 0
        is_row = is_due and loss is not None
        if is_line or is_row:
            losses = self._row_losses if is_row else [of for *_, of in self._line_steps if of is not None]
            seconds = now - self._started
            world.log_rank0(
                StepProgress(
                    step=step,
                    num_steps=self.num_steps,
                    epoch=epoch,
                    loss=sum(losses) / len(losses) if losses else None,
                    learning_rate=rate,
                    grad_norm=None if grad_norm is None else float(grad_norm),
                    rows_per_second=self._rows / max(seconds, 1e-9),
                    seconds_left=self._seconds_left(step, now),
                    points=_curve(self._line_steps, now) if is_line else (),
                    is_line=is_line,
                    is_row=is_row,
                )
            )
        if is_line:
            self._said = now
            self._line_steps = []
        if is_row:
            self._row_losses = []

    def _seconds_left(self, step: int, now: float) -> float | None:
        """Returns how long the training will take, by the steps behind the first one, which is slow; None too early."""
        if self._steps == 1:
            self._first = now
        if step < self.num_steps and self._steps < FIRST_ETA:
            return None
        return (now - self._first) / max(1, self._steps - 1) * (self.num_steps - step)


def _curve(steps: Sequence[tuple[int, float, float | None]], now: float) -> list[tuple[int, float, float | None]]:
    """Returns as many points as a line has room for: each the last of its steps, its age, and their mean loss."""
    width = math.ceil(len(steps) / MOST_POINTS)
    curve: list[tuple[int, float, float | None]] = []
    for begin in range(0, len(steps), width):
        part = steps[begin : begin + width]
        losses = [loss for *_, loss in part if loss is not None]
        mean = float(f"{sum(losses) / len(losses):.6g}") if losses else None
        curve.append((part[-1][0], round(now - part[-1][1], 3), mean))
    return curve
