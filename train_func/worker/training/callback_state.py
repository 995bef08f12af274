"""Callbacks that count for themselves: what no checkpoint keeps of them is named once, when it has changed."""

from collections.abc import Iterable
from typing import Any

from transformers.trainer_callback import ExportableState

from train_func.counted import listed
from train_func.worker.training.control_flags import is_of_libraries

PLAIN = (bool, int, float, str, type(None))


class UnsavedState:
    """Of callbacks that are no ExportableState: their attributes as they were when the training began."""

    def __init__(self, callbacks: Iterable[Any]) -> None:
        own = (of for of in callbacks if not (isinstance(of, ExportableState) or is_of_libraries(of)))
        self._known = [(of, _plain_of(of)) for of in own]

    def note(self) -> str | None:
        """Names the attributes that have changed since; None where there are none, or they were named before."""
        changed = [
            f"{type(of).__name__}.{name}"
            for of, known in self._known
            for name, value in _plain_of(of).items()
            if name not in known or known[name] != value
        ]
        if not changed:
            return None
        self._known = []
        return (
            f"callbacks have changed what no checkpoint keeps: {listed(changed)}. After a restart it begins anew. "
            "Derive the callback from transformers.trainer_callback.ExportableState too, and return from state() "
            "{'args': {}, 'attributes': {'name': value}}"
        )


def _plain_of(callback: Any) -> dict[str, Any]:
    """Plain attributes, and how many elements collections have."""
    found = {}
    for name, value in vars(callback).items():
        if isinstance(value, PLAIN):
            found[name] = value
        elif isinstance(value, (list, tuple, set, dict)):
            found[name] = len(value)
    return found
