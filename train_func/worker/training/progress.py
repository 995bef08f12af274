"""Progress: says now and then how far a training is, and gives the history its rows."""

import time
from collections.abc import Callable

from train_func.events import StepProgress
from train_func.worker.training import world

INTERVAL = 5.0  # seconds between two lines, at least
SHORT = 200  # steps of a training below which the history has each of them


class Progress:
    """Times the training steps, evaluations left out, and says now and then where it is."""

    def __init__(
        self,
        num_steps: int,
        steps_per_epoch: int,
        logging_steps: int = 0,
        interval: float = INTERVAL,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``logging_steps``: every so many steps the history gets a row; 0: only where there is a line."""
        self.num_steps, self.steps_per_epoch = num_steps, steps_per_epoch
        self._every = 1 if num_steps < SHORT else logging_steps
        self._interval, self._clock = interval, clock
        self._started = self._said = clock()
        self._steps = self._rows = 0
        self._losses: list[float] = []

    def leave_out(self, seconds: float) -> None:
        """Time that was no training."""
        self._started += seconds

    def step(self, step: int, num_rows: int, loss: float) -> None:
        """After step number ``step``, from 1, over ``num_rows`` rows of all ranks with this mean loss."""
        now = self._clock()
        self._steps += 1
        self._rows += num_rows
        self._losses.append(loss)
        is_line = now - self._said >= self._interval or self._steps == 1 or step == self.num_steps
        if is_line:
            self._said = now
        if is_line or (self._every and step % self._every == 0):
            self._say(step, now - self._started, is_row_only=not is_line)
            self._losses = []

    def _say(self, step: int, seconds: float, *, is_row_only: bool) -> None:
        left = seconds / self._steps * (self.num_steps - step)
        world.log_rank0(
            StepProgress(
                step=step,
                num_steps=self.num_steps,
                epoch=step / self.steps_per_epoch,
                loss=sum(self._losses) / len(self._losses),
                rows_per_second=self._rows / max(seconds, 1e-9),
                seconds_left=left,
                is_row_only=is_row_only,
            )
        )
