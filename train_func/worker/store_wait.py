"""A store that is away is waited for inside the pod, for a stated time."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

from train_func.errors import StorageFailed
from train_func.storage import Store
from train_func.wire.events import WaitsForStore
from train_func.worker.rank import reporting
from train_func.worker.stop import Stop

STORE_SECONDS = 60.0  # longest wait for a store that is away, before the training
RECORD_SECONDS = 15.0  # longest wait of a worker's end for the store
KEY_SECONDS = 60.0  # for which the store refuses a key, as the Secret may follow an exchange of it later
PAUSE_SECONDS = 3.0  # between two tries
NOTICE_SECONDS = 15.0  # between two lines that say what is waited for

T = TypeVar("T")


def patiently(call: Callable[[], T], stop: Stop, *, seconds: float = STORE_SECONDS, purpose: str = "") -> T:
    """Repeats ``call`` while the store is unreachable, for ``seconds`` from the first failure on.

    ``purpose``: of the wait, in words.

    Raises:
        StorageFailed: the last failure, or at once one that waiting does not heal.
        Stopped: on a signal.
    """
    return _Patient(None, stop, seconds, purpose).wait(call)


def patient(store: Store, stop: Stop, seconds: float, purpose: str) -> Store:
    """Returns the store with calls that wait for it while it is away, all of them together for ``seconds``.

    Each call waits by itself, so that what has arrived is not sent again. The time begins anew with the first failure
    after an answer: an upload that takes longer than ``seconds`` and then fails is worth the whole wait. ``purpose``:
    what the wait is for, in words. The key was good before, so its refusal is waited for too, KEY_SECONDS at most.
    """
    return cast(Store, _Patient(store, stop, seconds, purpose))


class _Patient:
    def __init__(self, store: Store | None, stop: Stop, seconds: float, purpose: str) -> None:
        self._store, self._stop, self._seconds, self._purpose = store, stop, seconds, purpose
        self._until: dict[bool, float] = {}  # by whether the key is refused, since the store is away
        self._next_notice = 0.0

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._store, name)
        return (lambda *args, **options: self.wait(partial(value, *args, **options))) if callable(value) else value

    def wait(self, call: Callable[[], T]) -> T:
        while True:
            try:
                result = call()
            except StorageFailed as failure:
                is_refused = failure.reason == "credentials" and self._store is not None
                if not (failure.retryable or is_refused):
                    self._until.clear()
                    raise
                now = time.monotonic()
                seconds = min(KEY_SECONDS, self._seconds) if is_refused else self._seconds
                until = self._until.setdefault(is_refused, now + seconds)
                if now + PAUSE_SECONDS > until:
                    raise
                if now > self._next_notice:
                    self._next_notice = now + NOTICE_SECONDS
                    reporting.say(WaitsForStore(seconds_left=until - now, message=str(failure), purpose=self._purpose))
            else:
                self._until.clear()
                return result
            self._stop.pause(PAUSE_SECONDS)
