"""Signs of life in the store, by which a client that cannot ask the job's backend knows that the job goes on."""

import contextlib

from train_func.errors import StorageFailed
from train_func.events import now
from train_func.records import BEAT_SECONDS, RunRecord, SignOfLife
from train_func.storage import Store
from train_func.storage.retry import call_with_timeout
from train_func.worker.supervisor.budget import newest_submission
from train_func.worker.supervisor.periodic import Periodic


class Heartbeat(Periodic):
    """Worker 0 gives these signs from the moment at which it has the store to its end.

    A job whose run was submitted again gives none: the newer job would look alive by them.
    """

    def __init__(self, store: Store, record: RunRecord, pod: str) -> None:
        super().__init__("heartbeat")
        self._store, self._record, self._pod = store, record, pod
        self._is_first = True

    def finish(self, seconds: float, *, is_over: bool) -> None:
        """Ends the signs; if the job ``is_over``, the last one says so. Takes at most ``seconds``."""
        self.end()
        if not is_over:
            return
        self.join(seconds)  # else a sign that is on its way would take the place of the last one
        if not self.is_alive():
            with contextlib.suppress(StorageFailed, TimeoutError):  # it is found out by waiting, too
                call_with_timeout(seconds, lambda: self._put(is_over=True))

    def _pause(self) -> float:
        return 0.0 if self._is_first else BEAT_SECONDS

    def _keep(self) -> None:
        self._put(is_over=False)

    def _put(self, *, is_over: bool) -> None:
        self._is_first = False
        if self._record.submitted not in ("", newest_submission(self._store, self._record)):
            return
        sign = SignOfLife(time=now(), pod=self._pod, is_over=is_over)
        self._store.put(self._record.keys.alive, sign.to_json())
