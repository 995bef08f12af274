"""How long a store is asked again, and how long anything may take."""

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

FIRST_PAUSE = 0.2  # seconds
LONGEST_PAUSE = 3.0

T = TypeVar("T")


class Backoff:
    """The tries of one operation: exponential pauses with a cap and full jitter, none begun after ``seconds``."""

    def __init__(self, seconds: float) -> None:
        self.num = 1
        self._seconds = seconds
        self._started = time.monotonic()

    @property
    def spent(self) -> float:
        """Seconds since the first try began."""
        return time.monotonic() - self._started

    def again(self) -> bool:
        """Pauses and counts one more try, or says False at once when there is no time for one."""
        pause = random.uniform(0, min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (self.num - 1)))
        if self.spent + pause > self._seconds:
            return False
        time.sleep(pause)
        self.num += 1
        return True


def begin(call: Callable[[], T]) -> "Future[T]":
    """``call()`` in a thread of its own, which may be left behind: what a hung mount keeps waiting ends no earlier."""
    outcome: Future[T] = Future()

    def work() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=work, name="store", daemon=True).start()
    return outcome


def call_with_timeout(seconds: float, call: Callable[[], T]) -> T:
    """The result of ``call()``; raises TimeoutError when that takes longer than ``seconds``: its thread is left behind.

    A silent name server, for one, ends no earlier.
    """
    outcome = begin(call)
    try:
        return outcome.result(seconds)
    except TimeoutError:
        if outcome.done():  # the call's own TimeoutError, not ours
            return outcome.result()
        raise
