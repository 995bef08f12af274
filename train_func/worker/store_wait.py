"""A store that is away is waited for inside the pod, for a stated time."""

import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

from train_func.errors import StorageFailed
from train_func.events import WaitsForStore
from train_func.storage import Store
from train_func.worker.rank import reporting
from train_func.worker.stop import Stop

STORE_SECONDS = 60.0  # longest wait for a store that is away, before the training
RECORD_SECONDS = 15.0  # longest wait of a worker's end for the store
PAUSE = 3.0  # between two tries
TELL = 15.0  # between two lines that say what is waited for

T = TypeVar("T")


class Notice:
    """Says that the store is waited for, and for what (``purpose``), at once and then now and again."""

    def __init__(self, purpose: str = "") -> None:
        self._purpose, self._next = purpose, 0.0

    def tell(self, seconds: float, failure: StorageFailed) -> None:
        """Says it, where that is due. ``seconds``: those that are left."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + TELL
        reporting.say(
            WaitsForStore(
                seconds_left=seconds,
                fault=failure.fault,
                is_unknown_host=failure.is_unknown_host,
                message=str(failure),
                purpose=self._purpose,
            )
        )


def patiently(call: Callable[[], T], stop: Stop, *, seconds: float = STORE_SECONDS, notice: Notice | None = None) -> T:
    """Repeats ``call`` while the store is unreachable, for ``seconds`` at most.

    Raises:
        StorageFailed: the last failure, or at once one that waiting does not heal.
        Stopped: on a signal.
    """
    end = time.monotonic() + seconds
    notice = notice or Notice()
    while True:
        try:
            return call()
        except StorageFailed as failure:
            if not failure.retryable or time.monotonic() + PAUSE > end:
                raise
            notice.tell(end - time.monotonic(), failure)
        stop.pause(PAUSE)


def patient(store: Store, stop: Stop, seconds: float, purpose: str) -> Store:
    """Returns the store with calls that wait for it while it is away, all of them together for ``seconds``.

    Each call waits by itself, so that what has arrived is not sent again. ``purpose``: what the wait is for, in words.
    """
    return cast(Store, _Patient(store, stop, time.monotonic() + seconds, Notice(purpose)))


class _Patient:
    def __init__(self, store: Store, stop: Stop, until: float, notice: Notice) -> None:
        self.address = store.address
        self._store, self._stop, self._until, self._notice = store, stop, until, notice

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        def call(*args: Any, **options: Any) -> Any:
            left = self._until - time.monotonic()
            return patiently(lambda: method(*args, **options), self._stop, seconds=left, notice=self._notice)

        return call
