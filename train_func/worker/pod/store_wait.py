"""A store that is away is waited for inside the pod, for a stated time."""

import time
from collections.abc import Callable
from typing import TypeVar

from train_func.errors import StorageFailed
from train_func.worker.pod.stop import Stop

STORE_SECONDS = 60.0
PAUSE = 3.0

T = TypeVar("T")


def patiently(call: Callable[[], T], stop: Stop, seconds: float = STORE_SECONDS) -> T:
    """Repeats ``call`` while the store is unreachable, for so many seconds at most.

    Raises:
        StorageFailed: the last failure, or at once one that waiting does not heal.
        Stopped: on a signal.
    """
    end = time.monotonic() + seconds
    while True:
        try:
            return call()
        except StorageFailed as failure:
            if not failure.retryable or time.monotonic() + PAUSE > end:
                raise
            print(f"the store is away, waiting up to {end - time.monotonic():.0f} s more for it: {failure}", flush=True)
        stop.pause(PAUSE)
