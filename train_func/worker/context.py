"""What the session that is open in this process gives to the Trainers of its function, which makes them without it.

It stands here, and not in Trainer, because a session opens without importing transformers, which takes seconds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from train_func.worker.checkpoint.checkpointing import Checkpointing
from train_func.worker.tasks.protocol import WorkerTask


class Checks(Protocol):
    """What a session does around a training; both methods are collective, and raise to refuse it."""

    def before_training(self, trainer: Any) -> None:
        """Runs before the first step of an attempt."""

    def after_training(self, trainer: Any) -> None:
        """Runs after the last step, when the best weights were loaded."""


@dataclass(frozen=True)
class Context:
    """What an open session gives. All is None while no session is open."""

    task: WorkerTask | None = None
    checkpoints: Callable[[Mapping[str, Any]], Checkpointing] | None = None
    """Returns the checkpoints of a training; takes the values of its fingerprint."""
    checks: Callable[[], Checks] | None = None


here = Context()
