"""Keeps the history of an attempt in the store while it runs: as CSV, in a new file when one is long.

With bounded memory; no failure of it is one of the run.
"""

from collections import deque
from collections.abc import Callable

from train_func.events import CheckpointSaved, Event
from train_func.layout import AttemptKeys
from train_func.metrics import Row, row_of, to_csv
from train_func.worker.pod.periodic import Periodic

INTERVAL = 10.0  # seconds between two uploads of short files; longer for longer ones, as each carries all of a file
LONGEST_FILE = 2**20  # bytes of a file, after which the next one begins
MOST_ROWS = 20_000  # kept while the store is away: more than a day; the oldest go first

Put = Callable[[str, bytes], object]


class History(Periodic):
    """Of one attempt. ``put`` stores bytes under a key, and may raise; ``interval`` is in seconds."""

    def __init__(
        self, keys: AttemptKeys, put: Put, *, interval: float = INTERVAL, longest_file: int = LONGEST_FILE
    ) -> None:
        super().__init__("history")
        self._keys = keys
        self._put = put
        self._interval = interval
        self._longest_file = longest_file
        self._new: deque[Row] = deque(maxlen=MOST_ROWS)
        self._rows: deque[Row] = deque(maxlen=MOST_ROWS)  # of the files that are open
        self._part = 1
        self._unkept = False
        self._length = 0

    def hear(self, event: Event) -> None:
        """Takes what belongs to the history; returns at once."""
        if row := row_of(event):
            self._new.append(row)
        if isinstance(event, CheckpointSaved):  # what goes on from it reports none of the steps before it again
            self.hasten()

    def _pause(self) -> float:
        return self._interval * (1 + 4 * self._length / self._longest_file)

    def _keep(self) -> None:
        while self._new:
            self._rows.append(self._new.popleft())
            self._unkept = True
        if not self._unkept:
            return
        table = to_csv(self._rows)
        self._put(self._keys.metrics_csv(self._part), table)
        self._unkept = False
        self._length = len(table)
        if self._length >= self._longest_file:
            self._rows.clear()
            self._part, self._length = self._part + 1, 0
