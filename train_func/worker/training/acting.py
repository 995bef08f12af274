"""Acting: all ranks log, evaluate and save after the same step, whichever of them a callback has asked to.

All ranks do each of these together, and a rank that began one alone would wait forever for the others. So the ranks
count what they were asked for before they look at it: after a step, an epoch, a log and an evaluation. Callbacks of
transformers and of this package ask all ranks alike: where there are no others nothing is exchanged, because every
exchange waits for the device.
"""

from typing import Any

import torch
from transformers import TrainerControl
from transformers.trainer_callback import CallbackHandler

from train_func.worker.training import world

FLAGS = ("should_log", "should_evaluate", "should_save")
ALIKE = ("transformers", "train_func")


class Actions:
    """What the ranks are to do, by the flags that transformers looks at."""

    def __init__(self, callbacks: CallbackHandler) -> None:
        """What ``callbacks`` ask for when they are told of a log is put off until the ranks count it: transformers
        would look at it at once."""
        self._callbacks = callbacks
        self._differ = True
        self._put_off: set[str] = set()
        call_event = callbacks.call_event

        def collected(event: str, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> TrainerControl:
            before = _flags_of(control)
            after: TrainerControl = call_event(event, args, state, control, **kwargs)
            if event == "on_step_begin":
                self._put_off.clear()  # as transformers takes back its flags
            elif event == "on_log":
                new = _flags_of(after) - before
                self._put_off |= new
                _set(after, _flags_of(after) - new)
            return after

        callbacks.call_event = collected

    def begin(self, device: torch.device) -> None:
        """Collective, before an epoch: whether any rank has callbacks by which ranks may differ."""
        own = sum(type(callback).__module__.split(".")[0] not in ALIKE for callback in self._callbacks.callbacks)
        self._differ = bool(world.total(torch.tensor(own, device=device)))

    def agree(self, control: TrainerControl, device: torch.device) -> None:
        """Collective: sets the flags of ``control`` that any rank was asked for."""
        if not self._differ:
            return
        own = _flags_of(control) | self._put_off
        self._put_off.clear()
        counts = world.total(torch.tensor([int(flag in own) for flag in FLAGS], device=device)).tolist()
        _set(control, {flag for flag, count in zip(FLAGS, counts, strict=True) if count})


def _flags_of(control: TrainerControl) -> set[str]:
    return {flag for flag in FLAGS if getattr(control, flag)}


def _set(control: TrainerControl, flags: set[str]) -> None:
    for flag in FLAGS:
        setattr(control, flag, flag in flags)
