"""How long a caller has to wait for something else than a silent server, for which alone its limit of time is meant."""

import contextlib
import contextvars
import threading
import time
from collections.abc import Iterator
from typing import Self


class Waits:
    """The waits of one caller: what a busy server asks for, and what credentials take."""

    def __init__(self, stopped: threading.Event | None = None) -> None:
        """``stopped`` ends a wait for a server when it is set."""
        self._outer = _waits.get()
        self._stopped: threading.Event = stopped or (self._outer._stopped if self._outer else threading.Event())
        self._lock = threading.Lock()
        self.seconds = 0.0
        self.until = 0.0
        """When the longest of the waits is over, as ``time.monotonic`` tells it."""

    @classmethod
    def of_this_thread(cls) -> Self:
        """Those that are counted; with nobody to count them, new ones."""
        counted = _waits.get()
        return counted if isinstance(counted, cls) else cls()

    def wait(self, seconds: float) -> bool:
        """Waits as the server asks; False when the caller was stopped meanwhile."""
        self._add(seconds, time.monotonic() + seconds)
        return not self._stopped.wait(seconds)

    @contextlib.contextmanager
    def lent(self, seconds: float) -> Iterator[None]:
        """Until it is left, the caller waits for something else, ``seconds`` at most; the rest is taken back."""
        end = time.monotonic() + seconds
        self._add(seconds, end)
        try:
            yield
        finally:
            self._take_back(max(0.0, end - time.monotonic()), end)

    def count(self) -> None:
        """From now on, in this thread."""
        _waits.set(self)

    def _add(self, seconds: float, until: float) -> None:
        """The caller, and whoever waits for it, waits so much longer."""
        with self._lock:
            self.seconds, self.until = self.seconds + seconds, max(self.until, until)
        if self._outer:
            self._outer._add(seconds, until)

    def _take_back(self, seconds: float, until: float) -> None:
        with self._lock:
            self.seconds -= seconds
            if self.until == until:
                self.until = time.monotonic()
        if self._outer:
            self._outer._take_back(seconds, until)


_waits: contextvars.ContextVar[Waits | None] = contextvars.ContextVar("waits", default=None)
