"""Callbacks that count for themselves: what no checkpoint keeps of them is named once, when it has changed.

The checkpoint names it, so that the attempt that goes on from there can tell with the result what began anew.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from transformers.trainer_callback import ExportableState

from train_func.counted import listed
from train_func.worker.pod import sessions
from train_func.worker.training.control_flags import is_of_libraries

PLAIN = (bool, int, float, str, type(None))


class UnsavedState:
    """Of callbacks that are no ExportableState: their attributes as they were when the training began."""

    def __init__(self, callbacks: Iterable[Any], lost: Iterable[str] = ()) -> None:
        """``lost``: what began anew when an attempt went on, by name."""
        self._lost, self._has_told = tuple(lost), False
        own = (of for of in callbacks if not (isinstance(of, ExportableState) or is_of_libraries(of)))
        self._known = [(of, _plain_of(of)) for of in own]

    def _changed(self) -> list[str]:
        return [
            f"{type(of).__name__}.{name}"
            for of, known in self._known
            for name, value in _plain_of(of).items()
            if name not in known or known[name] != value
        ]

    def lost_behind(self) -> list[str]:
        """What has begun anew where a training goes on from here."""
        return sorted({*self._lost, *self._changed()})

    def note(self) -> str | None:
        """Names the attributes that have changed since; None where there are none, or they were named before."""
        if self._has_told or not (changed := self._changed()):
            return None
        self._has_told = True
        return (
            f"callbacks have changed what no checkpoint keeps: {listed(changed)}. After a restart it begins anew. "
            "Derive the callback from transformers.trainer_callback.ExportableState too, and return from state() "
            "{'args': {}, 'attributes': {'name': value}}"
        )


def begun_anew(step: int, training: Mapping[str, Any]) -> list[str]:
    """What an attempt that goes on behind ``step`` has lost, which is told with the result; ``training``: was saved."""
    lost: list[str] = training.get("unsaved", [])  # an earlier version of train_func saved none
    if lost:
        sessions.here.notes.append(
            f"the training was gone on with behind step {step}, and what no checkpoint keeps of its callbacks began "
            f"anew: {listed(lost)}"
        )
    return lost


def _plain_of(callback: Any) -> dict[str, Any]:
    """Plain attributes, and how many elements collections have."""
    found = {}
    for name, value in vars(callback).items():
        if isinstance(value, PLAIN):
            found[name] = value
        elif isinstance(value, (list, tuple, set, dict)):
            found[name] = len(value)
    return found
