"""Periodic uploads of the supervisor: its log, the history of an attempt, and signs of life.

Each has a thread of its own, so that a store that is away blocks nothing else, and bounded memory. A failure of one is
no failure of the run: the next round uploads everything again.
"""

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from train_func.errors import StorageFailed
from train_func.process.timeout import call_with_timeout
from train_func.storage import Store
from train_func.wire.events import CheckpointSaved, Event, Stage, now
from train_func.wire.layout import AttemptKeys
from train_func.wire.metrics import Row, row_of, to_csv
from train_func.wire.records import BEAT_SECONDS, RunRecord, SignOfLife
from train_func.worker.ledger import newest_submission
from train_func.worker.store_wait import KEY_SECONDS

LOG_SECONDS = 3.0  # between two uploads of a short log; twice that of one of a MiB, because each carries all of it
HISTORY_SECONDS = 10.0  # between two uploads of a short file; longer for longer ones, as each carries all of it
LONGEST_FILE = 2**20  # bytes of a file of a history, after which the next one begins
MOST_ROWS = 20_000  # of a file, and as many for the next ones while the store is away; then the oldest go first


class Periodic(threading.Thread):
    """Uploads in rounds; a subclass defines the upload (``_keep``), and the seconds of a pause (``_pause``)."""

    def __init__(self) -> None:
        super().__init__(name=type(self).__name__, daemon=True)
        self._requests: queue.SimpleQueue[threading.Event] = queue.SimpleQueue()
        self._is_over = False

    def _pause(self) -> float:
        raise NotImplementedError

    def _keep(self) -> None:
        raise NotImplementedError

    def run(self) -> None:
        while not self._is_over:
            request = None
            with contextlib.suppress(queue.Empty):
                request = self._requests.get(timeout=self._pause())
            with contextlib.suppress(Exception):
                if not self._is_over:
                    self._keep()
            if request:
                request.set()

    def hasten(self) -> threading.Event:
        """Begins the next round now; the event is set after it."""
        request = threading.Event()
        self._requests.put(request)
        return request

    def flush(self, seconds: float) -> None:
        """Waits for a round that begins after this call, at most ``seconds``."""
        self.hasten().wait(seconds)

    def end(self) -> None:
        """Ends the rounds."""
        self._is_over = True
        self.hasten()


class LogUpload(Periodic):
    """Uploads the log whenever it has changed."""

    def __init__(self, render: Callable[[], bytes], put: Callable[[bytes], object]) -> None:
        super().__init__()
        self._render, self._put = render, put
        self._last = b""

    def _pause(self) -> float:
        return LOG_SECONDS * (1 + len(self._last) / 2**20)

    def _keep(self) -> None:
        log = self._render()
        if log != self._last:
            self._put(log)
            self._last = log


class HistoryUpload(Periodic):
    """Uploads the metrics of one attempt as CSV, in a new file once one is long."""

    def __init__(
        self,
        keys: AttemptKeys,
        put: Callable[[str, bytes], object],
        *,
        interval: float = HISTORY_SECONDS,
        longest_file: int = LONGEST_FILE,
    ) -> None:
        """``put`` stores bytes under a key, and may raise; ``interval`` is in seconds."""
        super().__init__()
        self._keys, self._put, self._interval, self._longest_file = keys, put, interval, longest_file
        self._new: deque[Row] = deque(maxlen=MOST_ROWS)
        self._rows: list[Row] = []  # of the file that is open
        self._part, self._training = 1, 0
        self._last = b""

    def hear(self, event: Event) -> None:
        """Takes an event for the history; returns at once."""
        if isinstance(event, Stage) and event.training is not None:
            self._training = event.training
        if row := row_of(event):
            self._new.append(replace(row, training=self._training))
            if len(self._new) == MOST_ROWS // 2:
                self.hasten()
        if isinstance(event, CheckpointSaved):  # what goes on from it reports none of the steps before it again
            self.hasten()

    def _pause(self) -> float:
        return self._interval * (1 + 4 * len(self._last) / self._longest_file)

    def _keep(self) -> None:
        while self._new or self._rows:
            while self._new and len(self._rows) < MOST_ROWS:
                self._rows.append(self._new.popleft())
            table = to_csv(self._rows)
            if table != self._last:
                self._put(self._keys.metrics_csv(self._part), table)
            self._last = table
            if len(table) < self._longest_file and len(self._rows) < MOST_ROWS:
                return
            self._rows, self._part, self._last = [], self._part + 1, b""


class Heartbeat(Periodic):
    """Writes signs of life, for a client that cannot ask the job's backend.

    Worker 0 writes them from its first access to the store to its end. A job whose run was submitted again writes none,
    because they would make the newer job look alive.
    """

    def __init__(self, store: Store, record: RunRecord, pod: str) -> None:
        super().__init__()
        self._store, self._record, self._pod = store, record, pod
        self._refusal: StorageFailed | None = None  # of the key, by the last answer of the store
        self._refused_since = 0.0
        self.hasten()

    @property
    def refused_seconds(self) -> float:
        """Seconds for which the store has refused the key of this worker, as far as signs were written; else 0."""
        return time.monotonic() - self._refused_since if self._refusal else 0.0

    def check(self) -> None:
        """Raises StorageFailed once the store has refused the key of this worker for KEY_SECONDS."""
        refusal = self._refusal
        if refusal and self.refused_seconds >= KEY_SECONDS:
            raise refusal

    def finish(self, seconds: float, *, is_over: bool) -> None:
        """Ends the signs within ``seconds``; the last one says whether the job ``is_over``."""
        self.end()
        if not is_over:
            return
        until = time.monotonic() + seconds
        self.join(seconds)  # else a sign that is on its way would take the place of the last one
        if not self.is_alive():
            with contextlib.suppress(StorageFailed, TimeoutError):  # a client notices by waiting, too
                call_with_timeout(until - time.monotonic(), lambda: self._keep(is_over=True))

    def _pause(self) -> float:
        return BEAT_SECONDS

    def _keep(self, *, is_over: bool = False) -> None:
        try:
            if self._record.submission in (0, newest_submission(self._store, self._record)):
                sign = SignOfLife(time=now(), pod=self._pod, is_over=is_over)
                self._store.put(self._record.keys.alive, sign.to_json())
        except StorageFailed as failure:
            if failure.reason == "credentials" and self._refusal is None:
                self._refused_since, self._refusal = time.monotonic(), failure
            raise
        self._refusal = None
