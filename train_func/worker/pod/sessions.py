"""What this process has done in Sessions: how its rank ends depends on it."""

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path

from train_func.worker.pod.rank_end import running


@dataclass
class Sessions:
    """Of one process."""

    opened: bool = False
    published: bool = False
    num_trainings: int = 0
    """That have begun."""
    trained: bool = False
    """Whether a training of a Trainer has come to its end."""
    may_cut_finer: bool = False
    """Whether another attempt can do with less memory, because it computes the batches of a plan in smaller parts."""
    notes: list[str] = field(default_factory=list)
    """What is told with the result."""

    def may_leave(self) -> None:
        """From now on an exit with code 0 is the end of the function: some leave so behind their last step, because
        what they import aborts where Python ends."""
        with contextlib.suppress(KeyError, OSError):  # no supervisor, or it was said before
            running(Path(os.environ["TRAIN_FUNC_OUTCOME_FILE"])).unlink()


here = Sessions()
