"""What this process has done in Sessions: how its rank ends depends on it."""

import contextlib
import os
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType

from train_func.worker.rank.end import left, running


@dataclass
class Loop:
    """A loop over ``session.steps`` that has not come to its end, and may have been left."""

    num_steps: int
    """Steps of the plan."""
    num_done: int
    left_at: tuple[CodeType, int] | None = None
    """The code and the line by which it was left."""

    def __str__(self) -> str:
        return f"after {self.num_done} of {self.num_steps} steps"

    @property
    def is_done(self) -> bool:
        """Whether all its steps are done, and it was left in the body of the last one."""
        return self.num_done == self.num_steps

    def is_left_by(self, error: BaseException) -> bool:
        """Whether ``error``, or one that it followed from, has ended the loop on its way."""
        current: BaseException | None = error
        while current is not None:
            passed = {(frame.f_code, line) for frame, line in traceback.walk_tb(current.__traceback__)}
            if self.left_at is None or self.left_at in passed:
                return True
            current = current.__cause__ or current.__context__
        return False


@dataclass
class Sessions:
    """The Sessions of one process."""

    opened: bool = False
    published: bool = False
    num_trainings: int = 0
    """Trainings that have begun."""
    trained: bool = False
    """Whether a training of a Trainer has come to its end."""
    loops: list[Loop] = field(default_factory=list)
    """Loops over steps that have begun, without those that have come to their end."""
    notes: list[str] = field(default_factory=list)
    """What is told with the result."""

    def tell_left(self, loop: Loop) -> None:
        """Writes down that break or return left a loop: native code may end the process before it can say so."""
        if os.environ.get("WORLD_SIZE") == "1":  # no other rank waits for it
            return
        with contextlib.suppress(KeyError, OSError):  # no supervisor
            left(Path(os.environ["TRAIN_FUNC_OUTCOME_FILE"])).write_text(f"{loop}")

    def left_steps(self, error: BaseException | None = None) -> str:
        """Says after how many steps the function left a loop early; ``error``: the one that ended the function."""
        return next((f"{loop}" for loop in self.loops if error is None or not loop.is_left_by(error)), "")

    def may_leave(self) -> None:
        """From now on an exit with code 0 is the end of the function: some leave so behind their last step, because
        what they import aborts where Python ends."""
        with contextlib.suppress(KeyError, OSError):  # no supervisor, or it was said before
            running(Path(os.environ["TRAIN_FUNC_OUTCOME_FILE"])).unlink()


here = Sessions()
