"""Progress: says now and then how far a training is."""

import time
from collections.abc import Callable

from train_func.events import StepProgress
from train_func.worker.training import world

INTERVAL = 5.0  # seconds between two events, at least


class Progress:
    """Times the training steps, evaluations left out, and says now and then where it is."""

    def __init__(
        self,
        num_steps: int,
        steps_per_epoch: int,
        interval: float = INTERVAL,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.num_steps, self.steps_per_epoch = num_steps, steps_per_epoch
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
        if now - self._said >= self._interval or self._steps == 1 or step == self.num_steps:
            self._said = now
            self._say(step, now - self._started)
            self._losses = []

    def _say(self, step: int, seconds: float) -> None:
        left = seconds / self._steps * (self.num_steps - step)
        world.log_rank0(
            StepProgress(
                step=step,
                num_steps=self.num_steps,
                epoch=step / self.steps_per_epoch,
                loss=sum(self._losses) / len(self._losses),
                rows_per_second=self._rows / max(seconds, 1e-9),
                seconds_left=left,
            )
        )
