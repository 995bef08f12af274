"""Control flags: all ranks log, evaluate, save and stop after the same step, whichever rank's callback asked for it.

transformers reads the flags that callbacks set on each rank by itself. Clocks and files differ between ranks; a rank
that evaluates or leaves the loop alone waits forever for the others. Here a flag takes effect once the ranks have
counted it together: requests to act (``Actions``) after a step, an epoch, a log and an evaluation; votes to stop
(``StopVotes``) along with the items of the next step, or at the end of an epoch.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import TrainerControl
from transformers.trainer_callback import CallbackHandler

from train_func.worker.training import world

ACTIONS = ("should_log", "should_evaluate", "should_save")
STOPS = ("should_training_stop", "should_epoch_stop")
ALIKE = ("transformers", "train_func")  # packages whose callbacks set the same flags on every rank


class Actions:
    """Requests to log, evaluate and save, which all ranks follow together.

    Callbacks of transformers and of this package ask on all ranks alike. Without other callbacks nothing is exchanged,
    because every exchange waits for the device.
    """

    def __init__(self, callbacks: CallbackHandler) -> None:
        """Requests that ``callbacks`` make in ``on_log`` are put off until the ranks count them; transformers would
        follow them at once."""
        self._callbacks = callbacks
        self._differ = True
        self._put_off: set[str] = set()
        call_event = callbacks.call_event

        def collected(event: str, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> TrainerControl:
            before = flags_of(control, ACTIONS)
            after: TrainerControl = call_event(event, args, state, control, **kwargs)
            if event == "on_step_begin":
                self._put_off.clear()  # as transformers takes back its flags
            elif event == "on_log":
                new = flags_of(after, ACTIONS) - before
                self._put_off |= new
                set_flags(after, ACTIONS, flags_of(after, ACTIONS) - new)
            return after

        callbacks.call_event = collected

    def begin(self, device: torch.device) -> None:
        """Collective, before an epoch: finds out whether any rank has callbacks by which ranks may differ."""
        own = sum(not is_of_libraries(callback) for callback in self._callbacks.callbacks)
        self._differ = bool(world.total(torch.tensor(own, device=device)))

    def agree(self, control: TrainerControl, device: torch.device) -> None:
        """Collective: sets the flags of ``control`` that a callback has set on any rank."""
        if not self._differ:
            return
        own = flags_of(control, ACTIONS) | self._put_off
        self._put_off.clear()
        counts = world.total(torch.tensor([int(flag in own) for flag in ACTIONS], device=device)).tolist()
        set_flags(control, ACTIONS, {flag for flag, count in zip(ACTIONS, counts, strict=True) if count})


class StopVotes:
    """This rank's votes, one per flag, since they were last counted."""

    def __init__(self) -> None:
        self._asked: set[str] = set()

    def collect(self, callbacks: CallbackHandler) -> None:
        """From now on, flags that ``callbacks`` set become votes after every event."""
        call_event = callbacks.call_event

        def collected(*args: Any, **kwargs: Any) -> TrainerControl:
            control: TrainerControl = call_event(*args, **kwargs)
            self._asked |= flags_of(control, STOPS)
            set_flags(control, STOPS, set())
            return control

        callbacks.call_event = collected

    @property
    def asked(self) -> list[str]:
        """The flags that this rank votes for."""
        return sorted(self._asked)

    def ask(self, flags: Sequence[str]) -> None:
        """Votes for ``flags``."""
        self._asked |= set(flags)

    def cast(self) -> list[int]:
        """One number per flag, to be added up over the ranks."""
        return [int(flag in self._asked) for flag in STOPS]

    def decide(self, counts: Sequence[int], control: TrainerControl) -> bool:
        """Sets the flags of ``control`` that any rank has voted for; returns whether there is one.

        ``counts``: those of ``cast``, summed over all ranks.
        """
        decided = {flag for flag, count in zip(STOPS, counts, strict=True) if count}
        self.clear()
        set_flags(control, STOPS, decided)
        return bool(decided)

    def clear(self) -> None:
        """Forgets the votes."""
        self._asked.clear()


def is_of_libraries(callback: Any) -> bool:
    """Whether it is one of transformers or of this package."""
    return type(callback).__module__.split(".")[0] in ALIKE


def flags_of(control: TrainerControl, flags: Sequence[str]) -> set[str]:
    """Those of ``flags`` that are set."""
    return {flag for flag in flags if getattr(control, flag)}


def set_flags(control: TrainerControl, flags: Sequence[str], chosen: set[str]) -> None:
    """Sets those of ``flags`` that are chosen, and no other."""
    for flag in flags:
        setattr(control, flag, flag in chosen)
