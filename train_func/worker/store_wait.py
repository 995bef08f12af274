"""A store that is away is waited for inside the pod, for a stated time."""

import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

from train_func.errors import StorageFailed
from train_func.events import WaitsForStore
from train_func.storage import Store
from train_func.worker.environment import Timings
from train_func.worker.rank import reporting
from train_func.worker.stop import Stop

T = TypeVar("T")
Tell = Callable[[float, StorageFailed], object]


def tell_waiting(seconds: float, failure: StorageFailed, purpose: str = "") -> None:
    """Says that the store is waited for, and for what."""
    reporting.say(
        WaitsForStore(
            seconds_left=seconds,
            fault=failure.fault,
            is_unknown_host=failure.is_unknown_host,
            message=str(failure),
            purpose=purpose,
        )
    )


def patiently(
    call: Callable[[], T], stop: Stop, timings: Timings, *, seconds: float | None = None, tell: Tell = tell_waiting
) -> T:
    """Repeats ``call`` while the store is unreachable, for ``seconds`` at most, by default those before a training.

    Raises:
        StorageFailed: the last failure, or at once one that waiting does not heal.
        Stopped: on a signal.
    """
    end = time.monotonic() + (timings.store if seconds is None else seconds)
    while True:
        try:
            return call()
        except StorageFailed as failure:
            if not failure.retryable or time.monotonic() + timings.store_pause > end:
                raise
            tell(end - time.monotonic(), failure)
        stop.pause(timings.store_pause)


def patient(store: Store, stop: Stop, seconds: float, purpose: str, timings: Timings) -> Store:
    """``store`` with calls that wait for it while it is away, all of them together for ``seconds``.

    Each call waits by itself, so that what has arrived is not sent again. ``purpose``: what the wait is for, in words.
    """
    return cast(Store, _Patient(store, stop, seconds, purpose, timings))


class _Patient:
    def __init__(self, store: Store, stop: Stop, seconds: float, purpose: str, timings: Timings) -> None:
        self.address = store.address
        self._store = store
        self._stop = stop
        self._until = time.monotonic() + seconds
        self._purpose = purpose
        self._timings = timings
        self._told = -timings.tell

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        def call(*args: Any, **options: Any) -> Any:
            left = self._until - time.monotonic()
            return patiently(lambda: method(*args, **options), self._stop, self._timings, seconds=left, tell=self._tell)

        return call

    def _tell(self, seconds: float, failure: StorageFailed) -> None:
        if time.monotonic() - self._told >= self._timings.tell:
            self._told = time.monotonic()
            tell_waiting(seconds, failure, self._purpose)
