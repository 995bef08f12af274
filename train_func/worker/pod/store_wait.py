"""A store that is away is waited for inside the pod, for a stated time."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from train_func.errors import StorageFailed
from train_func.events import WaitsForStore
from train_func.storage import Entry, Object, Store
from train_func.storage.store import ignore
from train_func.worker.pod import reporting
from train_func.worker.pod.stop import Stop
from train_func.worker.pod.timings import Timings

T = TypeVar("T")
Tell = Callable[[float, StorageFailed], object]


def _tell(seconds: float, failure: StorageFailed, purpose: str = "") -> None:
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
    call: Callable[[], T], stop: Stop, timings: Timings, *, seconds: float | None = None, tell: Tell = _tell
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


class PatientStore:
    """A store whose calls wait for it while it is away, all of them together for ``seconds``.

    Each call waits by itself, so that what has arrived is not sent again. ``purpose``: what the wait is for, in words.
    """

    def __init__(
        self,
        store: Store,
        stop: Stop,
        seconds: float,
        purpose: str,
        timings: Timings = Timings(),  # noqa: B008
    ) -> None:
        self.address = store.address
        self._store = store
        self._stop = stop
        self._until = time.monotonic() + seconds
        self._purpose = purpose
        self._timings = timings
        self._told = -timings.tell

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_version: str | None = None) -> str:
        """See Store."""
        return self._patiently(lambda: self._store.put(key, data, if_absent=if_absent, if_version=if_version))

    def upload(self, key: str, path: Path, *, sent: Callable[[int], object] = ignore) -> str:
        """See Store."""
        return self._patiently(lambda: self._store.upload(key, path, sent=sent))

    def get(self, key: str) -> Object:
        """See Store."""
        return self._patiently(lambda: self._store.get(key))

    def download(self, key: str, path: Path) -> str:
        """See Store."""
        return self._patiently(lambda: self._store.download(key, path))

    def checksum(self, key: str) -> str | None:
        """See Store."""
        return self._patiently(lambda: self._store.checksum(key))

    def names(self, folder: str) -> "list[str]":
        """See Store."""
        return self._patiently(lambda: self._store.names(folder))

    def list(self, prefix: str) -> "list[Entry]":
        """See Store."""
        return self._patiently(lambda: self._store.list(prefix))

    def delete(self, key: str) -> None:
        """See Store."""
        self._patiently(lambda: self._store.delete(key))

    def probe(self, prefix: str) -> None:
        """See Store."""
        self._patiently(lambda: self._store.probe(prefix))

    def _patiently(self, call: Callable[[], T]) -> T:
        left = self._until - time.monotonic()
        return patiently(call, self._stop, self._timings, seconds=left, tell=self._tell)

    def _tell(self, seconds: float, failure: StorageFailed) -> None:
        if time.monotonic() - self._told >= self._timings.tell:
            self._told = time.monotonic()
            _tell(seconds, failure, self._purpose)
