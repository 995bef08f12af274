"""The stop flag of a rank: a signal to stop ends the function at once, or between two steps of a training that saves.

Outside of ``defer`` the signal raises StopSignal in train_func at any line. Within ``defer`` it is only remembered: the
ranks vote on it in the exchange of every step, save together, and then raise StopSignal together. A signal after
StopSignal was raised raises nothing, because the function is ending, and may be saving something of its own.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from functools import cache
from types import FrameType


class StopSignal(KeyboardInterrupt):
    """A signal to stop ends train_func. ``follows``: whether only another rank has got the signal."""

    def __init__(self, message: str, *, follows: bool = False) -> None:
        global _is_stopped
        super().__init__(message)
        self.follows = follows
        _is_stopped = True


AGAIN_SECONDS = 0.1  # in which an interpreter on a busy machine has left what ignores an error

_names: list[str] = []
_times: list[float] = []  # when they came, monotonic seconds
_num_deferring = 0
_is_stopped = False
_masks = threading.local()  # of signals, where a thread forks


def install() -> None:
    """Installs the handler of SIGTERM; only in the main thread."""
    signal.signal(signal.SIGTERM, _on_signal)
    _hook_forks()


@cache
def _hook_forks() -> None:
    os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)


def _before_fork() -> None:
    """Makes signals wait during a fork, also in the child, because the interpreter ignores the errors of a hook."""
    global _num_deferring
    if threading.current_thread() is threading.main_thread():
        _num_deferring += 1
        _masks.num_names = len(_names)
    _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])


def _in_parent() -> None:
    global _num_deferring
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)
    if (num_names := _masks.__dict__.pop("num_names", None)) is not None:
        _num_deferring -= 1
        if len(_names) > num_names and not _num_deferring:
            _send_again()


def _in_child() -> None:
    """Makes a signal end the child, as it ends the processes of a pool."""
    if signal.getsignal(signal.SIGTERM) is _on_signal:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


def _send_again() -> None:
    """Sends the last signal once more, because it could not be raised."""
    _names.pop()
    again = threading.Timer(AGAIN_SECONDS, os.kill, (os.getpid(), signal.SIGTERM))
    again.daemon = True
    again.start()


@contextlib.contextmanager
def ends_process() -> Iterator[None]:
    """Makes a signal to stop end the process at once while the block runs.

    It is for native code that waits for other ranks: no handler runs before it returns, and nothing is to be saved.
    """
    handler = signal.getsignal(signal.SIGTERM)
    if handler is not _on_signal or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)


def hold() -> None:
    """Makes signals wait for ``accept``, because there is no function to end yet; only in the main thread."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])


def accept() -> None:
    """Passes signals to the handler from now on, including one that waits."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])


def _on_signal(number: int, frame: FrameType | None) -> None:
    _names.append(signal.Signals(number).name)
    _times.append(time.monotonic())
    if not (_num_deferring or _is_stopped):
        raise StopSignal(_names[0])


def ignore() -> None:
    """Ignores signals from now on, because the function has ended, and its outcome is being recorded."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def has_interrupted() -> bool:
    """Returns whether StopSignal was raised; a function that returns in spite of it may be unfinished."""
    return _is_stopped


def requested() -> bool:
    """Returns whether a signal has come."""
    return bool(_names)


def seconds() -> float:
    """Returns the seconds since the first signal; 0 if only another rank has got one."""
    return time.monotonic() - _times[0] if _times else 0.0


def stop_signal(step: int) -> StopSignal:
    """Returns the error to raise when all ranks stop together, ``step`` steps done."""
    name = _names[0] if _names else "a signal to another rank"
    return StopSignal(f"{name}, after step {step}", follows=not _names)


@contextlib.contextmanager
def defer() -> Iterator[None]:
    """Makes a signal wait for the end of a step while the block runs; its code asks ``requested`` there.

    Raises:
        StopSignal: at any end of the block, if a signal has come. A generator that is closed, as by ``break``, raises
            no error, so the signal is sent again, and raises StopSignal in the function.
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
            if isinstance(error, GeneratorExit):
                _send_again()
            else:
                raise StopSignal(_names[0]) from error
