"""The stop flag of a rank: a signal to stop ends the function where it is, or, while steps are saved, between two.

Without ``deferred`` the signal raises StopSignal in train_func wherever it meets it. Within, it is only remembered:
the ranks vote on it in the exchange that every step has, save together, and then raise StopSignal together. A signal
that comes again raises nothing: the function is on its way out, and may be saving something of its own.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class StopSignal(KeyboardInterrupt):
    """Raised in train_func where a signal to stop ends it. ``follows``: it had come to another rank alone."""

    def __init__(self, message: str, *, follows: bool = False) -> None:
        super().__init__(message)
        self.follows = follows


AGAIN_SECONDS = 0.01
_names: list[str] = []
_num_deferring = 0


def install() -> None:
    """Takes SIGTERM over; only in the main thread."""
    signal.signal(signal.SIGTERM, _on_signal)


def _on_signal(number: int, frame: FrameType | None) -> None:
    _names.append(signal.Signals(number).name)
    if len(_names) == 1 and not _num_deferring:
        raise StopSignal(_names[0])


def requested() -> bool:
    """Whether a signal has come."""
    return bool(_names)


def stopped_after(step: int) -> StopSignal:
    """What is raised when all ranks stop together, ``step`` steps done."""
    name = _names[0] if _names else "a signal to another rank"
    return StopSignal(f"{name}, after step {step}", follows=not _names)


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Within, a signal waits for the end of a step; the code inside asks ``requested`` there.

    Raises:
        StopSignal: when the block is left, in whatever way, and a signal has come. Out of a generator that is closed,
            as by ``break``, no error comes: the signal is then sent again, and raises it in the function.
    """
    global _num_deferring
    _num_deferring += 1
    error: BaseException | None = None
    try:
        yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        _num_deferring -= 1
        if _names and not _num_deferring and not isinstance(error, StopSignal):
            if not isinstance(error, GeneratorExit):
                raise StopSignal(_names[0]) from error
            _names.clear()
            again = threading.Timer(AGAIN_SECONDS, os.kill, (os.getpid(), signal.SIGTERM))
            again.daemon = True
            again.start()
