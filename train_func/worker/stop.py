"""The request to stop: which signals came, or what else asks for it, when, and how long the worker may still take.

The first signal counts, and the grace period alone decides: Kubernetes, init systems and people repeat signals, and a
save that is under way is worth the wait.
"""

import signal
import time
from types import FrameType

RESERVE_SECONDS = 5.0  # of the grace period kept for records and logs, after the work has ended
SHORTEST_SECONDS = 1.0  # that the ranks have even within a tiny grace period


class Stopped(Exception):
    """Raised where work is given up because of a request to stop."""


def work_seconds(grace: float) -> float:
    """Returns the seconds of a grace period that the ranks have."""
    return max(SHORTEST_SECONDS, grace - RESERVE_SECONDS)


class Stop:
    """Remembers SIGTERM and SIGINT from the moment of ``install`` on; nothing else happens inside the handler.

    ``grace``: seconds between the first signal and the SIGKILL that Kubernetes sends.
    """

    def __init__(self) -> None:
        self.grace = 30.0
        self._times: list[float] = []
        self._names: list[str] = []

    def install(self) -> None:
        """Takes the signals over; only in the main thread."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.request(signal.Signals(number).name)

    def request(self, name: str) -> None:
        """Asks to stop, as a signal does; ``name`` says what asks."""
        self._names.append(name)
        self._times.append(time.monotonic())

    @property
    def requested(self) -> bool:
        """Returns whether a signal has come."""
        return bool(self._times)

    @property
    def name(self) -> str:
        """Name of the first signal."""
        return self._names[0]

    @property
    def seconds(self) -> float:
        """Seconds since the first signal."""
        return time.monotonic() - self._times[0]

    @property
    def work_until(self) -> float:
        """The moment at which the ranks are killed, and nothing is published any more (monotonic seconds)."""
        return self._times[0] + work_seconds(self.grace)

    @property
    def all_until(self) -> float:
        """The moment at which the worker must have left (monotonic seconds)."""
        return self._times[0] + max(2 * SHORTEST_SECONDS, self.grace - SHORTEST_SECONDS)

    def check(self) -> None:
        """Raises Stopped once a signal has come."""
        if self.requested:
            raise Stopped(self.name)

    def pause(self, seconds: float) -> None:
        """Sleeps, but not past a signal; raises Stopped then."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.check()
            time.sleep(min(0.1, left))
        self.check()


class WithinGrace(Stop):
    """Stops work that is worth the grace period: it is requested when the time after the signal is up."""

    def __init__(self, stop: Stop) -> None:
        super().__init__()
        self.grace, self._times, self._names = stop.grace, stop._times, stop._names

    @property
    def requested(self) -> bool:
        return super().requested and time.monotonic() > self.work_until
