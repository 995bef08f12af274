"""Progress: the lines by which a log, and a person, see how far a training is."""

import time

from train_func.worker.training import world

INTERVAL = 5.0  # seconds between two lines, at least


class Progress:
    """Times the training steps, evaluations left out, and says now and then where it is."""

    def __init__(self, num_steps: int, steps_per_epoch: int) -> None:
        self.num_steps, self.steps_per_epoch = num_steps, steps_per_epoch
        self._started = self._said = time.monotonic()
        self._steps = self._rows = 0
        self._losses: list[float] = []

    def leave_out(self, seconds: float) -> None:
        """Time that was no training."""
        self._started += seconds

    def step(self, step: int, num_rows: int, loss: float) -> None:
        """After step number ``step``, from 1, over ``num_rows`` rows of all ranks with this mean loss."""
        now = time.monotonic()
        self._steps += 1
        self._rows += num_rows
        self._losses.append(loss)
        if now - self._said >= INTERVAL or step in (1, self.num_steps):
            self._said = now
            self._say(step, now - self._started)
            self._losses = []

    @property
    def rows_per_second(self) -> float:
        """Rows of all ranks trained per second, so far."""
        return self._rows / max(time.monotonic() - self._started, 1e-9)

    def _say(self, step: int, seconds: float) -> None:
        left = seconds / self._steps * (self.num_steps - step)
        world.log_rank0(
            f"progress step={step}/{self.num_steps} epoch={step / self.steps_per_epoch:.2f} "
            f"loss={sum(self._losses) / len(self._losses):.4f} "
            f"rows_per_second={self._rows / max(seconds, 1e-9):.1f} eta={_clock(left)}"
        )


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
