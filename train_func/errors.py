"""The errors people see, each with a cause out of one fixed list.

    TrainFuncError
    ├── InvalidInput    (ValueError)   the Run, the data, the model or an option cannot work
    ├── SourceRefused   (ValueError)   the function cannot travel as it is written
    ├── StorageFailed   (OSError)      the store refused, is away, or holds something damaged
    ├── JobFailed       (RuntimeError) a job ended without its result
    └── JobNotFound     (LookupError)  no job or run of that name is in that backend

Every message says what was given, what is allowed, where, and what to do next.
"""

import copy
import copyreg
import sys
import traceback
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Literal, get_args

from train_func.text import shown

Cause = Literal[
    "input",  # a field of the Run, of Local(...) or of Cluster(...)
    "source",  # the function's text
    "data",
    "model",
    "code",  # an exception in train_func
    "divergence",  # a loss, or weights, are no finite numbers
    "image",
    "scheduling",
    "quota",
    "memory",
    "permission",
    "storage",
    "preemption",
    "peer",  # another worker was lost
    "killed",  # a process of the worker was killed by a signal that this program did not send
    "hang",  # a rank, or the ranks together, made no more progress
    "deadline",
    "cancelled",
    "interrupted",  # the job's controller, or its machine, died
    "cluster",  # the API server or the Training Operator is away, or not there
    "unknown",
]
CAUSES: tuple[Cause, ...] = get_args(Cause)

StorageReason = Literal[
    "absent",  # no object under that key
    "conflict",  # a conditional put lost
    "replaced",  # a later attempt of the same job has begun
    "unreachable",
    "credentials",  # none found, or the key is wrong
    "unproven",  # the key could not be shown or judged at the moment: its provider is away, or a clock is wrong
    "denied",  # the key is right, the permission is missing
    "bucket",  # the bucket, or the folder above the store, does not exist
    "full",
    "damaged",  # the bytes are not those that were put
    "address",  # not a store address
    "unsupported",  # the server has no such operation
]


class TrainFuncError(Exception):
    """The root of all errors that this package raises on purpose; ``cause`` is one of ``train_func.errors.CAUSES``."""

    checkpoints_of: str = ""
    """The run all of whose checkpoints are unusable, if that is the fault."""

    def __init__(self, message: str, *, cause: Cause) -> None:
        super().__init__(shown(message))  # it may quote what a worker wrote, and is printed
        self.cause: Cause = cause

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions pickle by calling __init__ with args, which here would miss the keyword-only ones.
        return copyreg.__newobj__, (type(self),), {**self.__dict__, "args": self.args}  # type: ignore[attr-defined]

    def _render_traceback_(self) -> list[str]:
        """Returns what IPython shows of it: the message, which says where; ``%xmode Verbose`` asks for all frames."""
        return rendered(self)


class WatchInterrupted(KeyboardInterrupt):
    """A person has ended the watching, and the job goes on. It ends the cells behind it, too, as any interrupt does."""

    def _render_traceback_(self) -> list[str]:
        """Returns what IPython shows of it: one sentence."""
        return [str(self)]


def print_above_package(
    print_error: Callable[[type[BaseException], BaseException, TracebackType | None], object],
    kind: type[BaseException],
    error: BaseException,
    frames: TracebackType | None,
) -> None:
    """Prints what ended a program as IPython shows it: an error of this package needs only the frames of its caller.

    ``print_error``, the ``sys.excepthook`` before, prints all frames of any other error.
    """
    if isinstance(error, WatchInterrupted):  # which was printed when it was raised
        return
    if isinstance(error, TrainFuncError):
        error = copy.copy(error)  # without what it was raised from; a debugger has the whole one
        above: list[TracebackType] = []
        while frames and frames.tb_frame.f_globals.get("__name__", "").partition(".")[0] != "train_func":
            above.append(frames)
            frames = frames.tb_next
        frames = None
        for each in reversed(above):
            frames = TracebackType(frames, each.tb_frame, each.tb_lasti, each.tb_lineno)
        error.__traceback__ = frames
    print_error(kind, error, frames)


def rendered(error: Exception) -> list[str]:
    """Returns what IPython shows of an error whose message says where and why."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if getattr(getattr(shell, "InteractiveTB", None), "mode", "") == "Verbose":
        return traceback.format_exception(error)
    kind, text = type(error).__name__, f"{error}"
    return [f"\x1b[31m{kind}\x1b[39m: {text}"]


class _Refused(TrainFuncError, ValueError):
    """One or more faults, all reported at once."""

    def __init__(self, faults: str | Sequence[str], *, cause: Cause) -> None:
        self.faults = (faults,) if isinstance(faults, str) else tuple(faults)
        if len(self.faults) == 1:
            text = self.faults[0]
        else:
            text = "\n".join([f"{len(self.faults)} faults:", *(f"  - {fault}" for fault in self.faults)])
        super().__init__(text, cause=cause)


class InvalidInput(_Refused):
    """A Run, data, a model or an option cannot work. ``faults`` lists every reason; ``cause`` is that of the first."""

    def __init__(self, faults: str | Sequence[str], *, cause: Cause = "input") -> None:
        super().__init__(faults, cause=cause)


class SourceRefused(_Refused):
    """The function cannot travel; ``faults`` lists every reason, each with its cell and line."""

    def __init__(self, faults: str | Sequence[str]) -> None:
        super().__init__(faults, cause="source")


class StorageFailed(TrainFuncError, OSError):
    """A store refused, is away, or holds something damaged; ``reason`` says which."""

    def __init__(self, message: str, *, reason: StorageReason) -> None:
        super().__init__(message, cause="storage")
        self.reason: StorageReason = reason

    @property
    def retryable(self) -> bool:
        """Returns whether the same operation may succeed later without any change."""
        return self.reason in ("unreachable", "unproven")


class JobFailed(TrainFuncError, RuntimeError):
    """A job ended without its result; the message names the cause, the worker and the cell line, and what to do next.

    ``remedy``: what to do next alone. ``retryable``: whether the same submission may succeed later.
    """

    def __init__(self, message: str, *, cause: Cause, remedy: str = "", retryable: bool = True) -> None:
        super().__init__(message, cause=cause)
        self.remedy = shown(remedy)
        self.retryable = retryable


class JobNotFound(TrainFuncError, LookupError):
    """No job or run of that name is in that backend."""

    def __init__(self, message: str) -> None:
        super().__init__(message, cause="input")
