"""Stopping: all ranks stop after the same step, whichever of them a callback has asked to.

transformers looks at flags that callbacks set on each rank by itself. Clocks and files differ between ranks, and a rank
that leaves the loop alone waits forever for the others. Here a flag is a vote: the loop sees it only once the ranks
have counted it together, along with the items of the next step, or where an epoch has ended.
"""

from collections.abc import Sequence
from typing import Any

from transformers import TrainerControl
from transformers.trainer_callback import CallbackHandler

FLAGS = ("should_training_stop", "should_epoch_stop")


class StopVotes:
    """This rank's votes, one per flag, since they were last counted."""

    def __init__(self) -> None:
        self._asked: set[str] = set()

    def collect(self, callbacks: CallbackHandler) -> None:
        """After every event, when all of ``callbacks`` have had it, their flags become votes."""
        call_event = callbacks.call_event

        def collected(*args: Any, **kwargs: Any) -> TrainerControl:
            control: TrainerControl = call_event(*args, **kwargs)
            self._asked |= {flag for flag in FLAGS if getattr(control, flag)}
            _set(control, frozenset())
            return control

        callbacks.call_event = collected

    def cast(self) -> list[int]:
        """One number per flag, to be added up over the ranks."""
        return [int(flag in self._asked) for flag in FLAGS]

    def decide(self, counts: Sequence[int], control: TrainerControl) -> bool:
        """Sets the flags of ``control`` that any rank has voted for; whether there is one. ``counts``: of all ranks."""
        decided = frozenset(flag for flag, count in zip(FLAGS, counts, strict=True) if count)
        self.clear()
        _set(control, decided)
        return bool(decided)

    def clear(self) -> None:
        """Forgets the votes."""
        self._asked.clear()


def _set(control: TrainerControl, flags: frozenset[str]) -> None:
    for flag in FLAGS:
        setattr(control, flag, flag in flags)
