"""How long what is asked of a cluster may take, the pauses between questions, and which waits do not count."""

import contextlib
import contextvars
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Timings:
    """Of one connection; a test passes shorter ones."""

    answer: float = 10.0
    """Between two packets of an answer."""
    busy: float = 60.0
    """Longest wait of one request for a busy server."""
    credentials: float = 20.0
    """For a credential plugin; after that its answer is taken when it comes."""
    credentials_pause: float = 30.0
    """At least, between two readings of credentials: a plugin may ask a login server, or a person."""
    login: float = 180.0
    """After which a plugin that still waits for a person is given up: the next reading asks anew."""
    first_listing: float = 15.0
    """For the first listing of a job that is followed, beside what a busy server asks for."""
    watch: int = 300
    """After which the server ends a watch, and the next one begins."""
    watch_pause: float = 0.25
    """Before a watch begins anew; it doubles up to ``longest_watch_pause``."""
    longest_watch_pause: float = 10.0
    silence: float = 90.0
    """Without a byte, after which a watch or a followed log counts as dead."""
    whole_log: float = 8.0
    """The same for a log that is there as a whole."""
    outage: float = 5.0
    """Without news, after which that is told."""
    idle: float = 30.0
    """After which an observer ends that has not been asked."""
    gone: float = 60.0
    """Longest that the removal of a job, beyond the grace period of its pods, or of a ConfigMap may take."""
    progress: float = 3.0
    """Between two lines about how far an upload has come."""
    late_pods: float = 60.0
    """Longest that pods of a job that has finished are still followed."""
    late_logs: float = 70.0
    """The same for those whose readers hang in a request."""


class Waits:
    """How long one caller waits for something else than a silent server, for which alone its limit of time is meant.

    That is what a busy server asks for, and what credentials take.
    """

    def __init__(self, stopped: threading.Event | None = None) -> None:
        """``stopped`` ends a wait for a server when it is set."""
        self._outer = _waits.get()
        self._stopped: threading.Event = stopped or (self._outer._stopped if self._outer else threading.Event())
        self._lock = threading.Lock()
        self.seconds = 0.0
        """Of all its waits; of one that is under way all of it."""

    @classmethod
    def of_this_thread(cls) -> "Waits":
        """Those that are counted; new ones where none are."""
        return _waits.get() or cls()

    def wait(self, seconds: float) -> bool:
        """Waits as the server asks; False when the caller was stopped meanwhile."""
        self._add(seconds)
        return not self._stopped.wait(seconds)

    @contextlib.contextmanager
    def lent(self, seconds: float) -> Iterator[None]:
        """Until it is left, the caller waits for something else, ``seconds`` at most; the rest is taken back."""
        end = time.monotonic() + seconds
        self._add(seconds)
        try:
            yield
        finally:
            self._add(-max(0.0, end - time.monotonic()))

    def count(self) -> None:
        """From now on, in this thread."""
        _waits.set(self)

    def _add(self, seconds: float) -> None:
        """The caller, and the one that waits for it, waits so much longer."""
        with self._lock:
            self.seconds += seconds
        if self._outer:
            self._outer._add(seconds)


_waits: contextvars.ContextVar[Waits | None] = contextvars.ContextVar("waits", default=None)
