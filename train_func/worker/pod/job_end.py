"""The end of the job as a worker sees it that still waits for its group, which then never forms."""

import contextlib
import threading
import time

from train_func.attempt_records import Verdict
from train_func.errors import StorageFailed
from train_func.worker.pod.attempt_store import Attempts


class JobEnd:
    """Looks at the end records every so many ``seconds``, until the group has formed."""

    def __init__(self, attempts: Attempts, seconds: float) -> None:
        self._attempts = attempts
        self._seconds = seconds
        self.has_formed = False
        self.verdict: Verdict | None = None
        """A final end of another worker."""

    def watch(self, known: set[str]) -> None:
        """Begins to look for records beside those that are known."""
        threading.Thread(target=self.look, args=(known,), name="end of the job", daemon=True).start()

    def look(self, known: set[str]) -> None:
        """Returns when the job is over or the group has formed."""
        while not self.has_formed and self.verdict is None:
            time.sleep(self._seconds)
            with contextlib.suppress(StorageFailed):  # the next call that needs the store says that it is away
                found = self._attempts.final_end(known)
                if not self.has_formed:  # else a peer of the group that has formed meanwhile
                    self.verdict = found
