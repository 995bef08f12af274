"""The stop flag of a rank: a signal to stop ends the function where it is, or, while steps are saved, between two.

Without ``deferred`` the signal raises StopSignal in train_func wherever it meets it. Within, it is only remembered:
the ranks vote on it in the exchange that every step has, save together, and then raise StopSignal together. A signal
that comes again raises nothing: the function is on its way out, and may be saving something of its own. Once a
training is over, half of the grace period is left to the function to measure, publish and come to its end.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType


class StopSignal(KeyboardInterrupt):
    """Raised in train_func where a signal to stop ends it. ``follows``: it had come to another rank alone."""

    def __init__(self, message: str, *, follows: bool = False) -> None:
        super().__init__(message)
        self.follows = follows


AGAIN_SECONDS = 0.01
STUCK = 3.0  # seconds in which Python runs a handler, unless native code keeps the main thread

_names: list[str] = []
_num_deferring = 0
_last_seconds, _signalled_at, _has_trained = 0.0, 0.0, False


def install(grace: float = 0.0) -> None:
    """Takes SIGTERM over; only in the main thread. ``grace``: seconds between it and the end of the ranks."""
    global _last_seconds
    _last_seconds = grace / 2
    signal.signal(signal.SIGTERM, _on_signal)


def hold() -> None:
    """A signal waits for ``accept``: there is no function yet that it could end. Only in the main thread."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])


def accept() -> None:
    """From now on a signal does what the handler does, the one that waits too."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])


def watch(leave: Callable[[StopSignal], object]) -> None:
    """Calls ``leave`` in a thread when a signal has come and nothing could be raised: native code waits, as it does
    where a process group forms whose other ranks have gone. Only in the main thread."""
    heard, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))  # a signal to a child is none to this process
    threading.Thread(target=_watch, args=(heard, leave), name="signals", daemon=True).start()


def _watch(heard: int, leave: Callable[[StopSignal], object]) -> None:
    while True:
        if signal.SIGTERM not in os.read(heard, 4096):
            continue
        time.sleep(STUCK)
        if not (_names or _num_deferring or _has_trained) and signal.getsignal(signal.SIGTERM) is _on_signal:
            leave(StopSignal("SIGTERM"))


def trains() -> None:
    """A training begins."""
    global _has_trained
    _has_trained = False


def has_trained() -> None:
    """The training is over: the function is about to end, and a stop would cost more than to let it."""
    global _has_trained
    _has_trained = True


def _on_signal(number: int, frame: FrameType | None) -> None:
    global _signalled_at
    _names.append(signal.Signals(number).name)
    if len(_names) > 1:
        return
    _signalled_at = time.monotonic()
    if not _num_deferring:
        _stop_in_time()


def _stop_in_time() -> None:
    left = _signalled_at + _last_seconds - time.monotonic()
    if not _has_trained or left <= 0:
        raise StopSignal(_names[0])
    signal.signal(signal.SIGALRM, _on_time)
    signal.setitimer(signal.ITIMER_REAL, left)


def _on_time(number: int, frame: FrameType | None) -> None:
    if not _num_deferring:  # else another training has begun, which stops between two steps
        raise StopSignal(_names[0])


def ignore() -> None:
    """The function has ended; what is decided is written down, whatever comes now."""
    for number in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)


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
        StopSignal: when the block is left, in whatever way, and a signal has come, unless the training is over. Out of
            a generator that is closed, as by ``break``, no error comes: the signal is then sent again, and raises it in
            the function.
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
            if error is None:
                _stop_in_time()
            elif not isinstance(error, GeneratorExit):
                raise StopSignal(_names[0]) from error
            else:
                _names.clear()
                again = threading.Timer(AGAIN_SECONDS, os.kill, (os.getpid(), signal.SIGTERM))
                again.daemon = True
                again.start()
