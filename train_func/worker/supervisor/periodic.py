"""Keeps something in the store again and again, in a thread of its own: a store that is away blocks nothing else."""

import contextlib
import queue
import threading


class Periodic(threading.Thread):
    """A subclass says what is kept, and how long the pauses are."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._requests: queue.SimpleQueue[threading.Event] = queue.SimpleQueue()
        self._is_over = False

    def _pause(self) -> float:
        """Seconds before the next round."""
        raise NotImplementedError

    def _keep(self) -> None:
        """One round; where it fails, the next one tries again, with everything."""
        raise NotImplementedError

    def run(self) -> None:
        while not self._is_over:
            asked = None
            with contextlib.suppress(queue.Empty):
                asked = self._requests.get(timeout=self._pause())
            with contextlib.suppress(Exception):
                if not self._is_over:
                    self._keep()
            if asked is not None:
                asked.set()

    def hasten(self) -> None:
        """Has the next round begin now."""
        self._requests.put(threading.Event())

    def flush(self, seconds: float) -> None:
        """Returns after a round that began later than this call, or after ``seconds``."""
        kept = threading.Event()
        self._requests.put(kept)
        kept.wait(seconds)

    def end(self) -> None:
        """Keeps nothing any more."""
        self._is_over = True
        self.hasten()
