"""Local: the backend that executes a PyTorchJob as processes of this machine.

Loaded when it is first used: the controller shares this package and has to start quickly.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from train_func.client.twin.local import Local

__all__ = ["Local"]


def __getattr__(name: str) -> Any:
    if name != "Local":
        raise AttributeError(f"train_func.client.twin has no {name!r}; it offers Local")
    from train_func.client.twin.local import Local

    return Local
