"""What runs in the pod, and in its stand-in on this machine.

Inside ``train_func`` it offers Session and Trainer. Anywhere it offers ``read`` and ``split``, to look at the rows of a
data set and of a run. Each is loaded when it is first used, because the supervisor needs no torch.
"""

import importlib
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from train_func.worker.inputs.reader import read
    from train_func.worker.session import Session
    from train_func.worker.tasks.protocol import split
    from train_func.worker.training.trainer import Trainer

_HOMES = {
    "Session": "train_func.worker.session",
    "Trainer": "train_func.worker.training.trainer",
    "read": "train_func.worker.inputs.reader",
    "split": "train_func.worker.tasks.protocol",
}
__all__ = ["Session", "Trainer", "read", "split"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"train_func.worker has no {name!r}; it offers {', '.join(__all__)}")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="IProgress not found")  # a notebook's matter, of no use to a training
        return getattr(importlib.import_module(_HOMES[name]), name)
