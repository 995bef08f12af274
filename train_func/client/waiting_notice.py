"""The waiting notice: that a job is still waited for, said while nothing happens."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

FIRST_SECONDS, LONGEST_SECONDS = 12.0, 300.0  # of silence, before the first notice and between two
HINT_SECONDS = 60.0  # of waiting, whatever is said meanwhile


@contextlib.contextmanager
def hinted(say: Callable[[], None]) -> Iterator[None]:
    """Calls ``say`` once when what is waited for inside takes long; never for what is quick."""
    timer = threading.Timer(HINT_SECONDS, say)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class WaitingNotice:
    """Says while nothing happens that it is still waited for: soon at first, then less and less often.

    ``clock`` in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._heard = self._beat = self._clock()
        self._pause = FIRST_SECONDS

    def heard(self) -> None:
        """Something was said."""
        self._heard = self._beat = self._clock()
        self._pause = FIRST_SECONDS

    @property
    def silence(self) -> float:
        """Seconds since something was said."""
        return self._clock() - self._heard

    def due(self, state: str) -> str:
        """What to say now; mostly nothing."""
        now = self._clock()
        if now - self._beat < self._pause:
            return ""
        self._beat, self._pause = now, min(2 * self._pause, LONGEST_SECONDS)
        return f"still {state}, nothing new for {self.silence:.0f} s"
