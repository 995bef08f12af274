"""What the supervisors of one group tell each other through their rendezvous store: signs of life, ends, verdicts."""

import contextlib
import json
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Protocol

from train_func.attempt_records import Verdict
from train_func.worker.pod.stop import Stop, Stopped

BEAT, SILENCE = 1.0, 15.0  # seconds


class KeyValue(Protocol):
    """The part of torch.distributed.Store that is used here; nothing of it waits for another worker."""

    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> bytes: ...
    def check(self, keys: Sequence[str]) -> bool: ...
    def add(self, key: str, amount: int) -> int: ...
    def compare_set(self, key: str, expected: str, desired: str) -> bytes: ...


class NotFormed(Exception):
    """The group did not come together in time."""


class PeersLost(Exception):
    """The group cannot go on. ``verdict``: why, when a worker could say it."""

    def __init__(self, message: str, verdict: Verdict | None = None) -> None:
        super().__init__(message)
        self.verdict = verdict


class Peers:
    """One worker's view of its group of ``num_workers``.

    ``beat``: seconds between two signs of life; ``silence``: seconds without one after which a worker counts as lost.
    """

    def __init__(
        self,
        store: KeyValue,
        *,
        worker: int,
        num_workers: int,
        stop: Stop,
        beat: float = BEAT,
        silence: float = SILENCE,
    ) -> None:
        self._store = store
        self._worker = worker
        self._num_workers = num_workers
        self._stop = stop
        self._beat_seconds, self._silence = beat, silence
        self._neighbour = (worker + 1) % num_workers
        self._heard = (b"", time.monotonic())
        self._looked = 0.0

    def check_in(self, seconds: float) -> bool:
        """Whether all workers, each once, are there within ``seconds``; they then give signs of life."""
        if self._store.add(f"here/{self._worker}", 1) > 1:
            raise PeersLost(f"two pods say that they are worker {self._worker}")
        self._store.add("here", 1)
        if not self._reaches("here", seconds):
            return False
        threading.Thread(target=self._beat, name="signs of life", daemon=True).start()
        return True

    def tell_start(self, start: str) -> None:
        """Says how the group starts."""
        self._store.set("start", start)

    def hear_start(self) -> str:
        """What worker 0 said so; it may have to wait for the store of the run first."""
        while not self._has("start"):
            self.look()
            self._stop.pause(0.05)
        return self._store.get("start").decode()

    def tell(self, verdict: Verdict) -> Verdict:
        """Says how this worker ends; returns the first verdict that was said, which may be another worker's."""
        try:
            said = self._store.compare_set("verdict", "", json.dumps(asdict(verdict)))
        except RuntimeError:
            return verdict
        return _verdict(said)

    def verdict(self, seconds: float) -> Verdict | None:
        """The verdict that was said first, or None when none was within ``seconds``."""
        try:
            said = self._await("verdict", seconds)
        except RuntimeError:  # its host has gone
            return None
        return _verdict(said) if said else None

    def tell_whether_publishing(self, publishing: bool) -> None:
        """Worker 0 says at its end whether it publishes what was trained; what it says first counts."""
        with contextlib.suppress(RuntimeError):
            self._store.compare_set("publishing", "", str(publishing))

    def is_publishing(self, seconds: float) -> bool:
        """What worker 0 says so; False when it has gone, True when it has not said it within ``seconds``."""
        try:
            return self._await("publishing", seconds) != str(False).encode()
        except RuntimeError:
            return False

    def _await(self, key: str, seconds: float) -> bytes | None:
        end = time.monotonic() + seconds
        while not self._store.check([key]):
            if self._stop.requested or time.monotonic() > end:
                return None
            time.sleep(0.05)
        return self._store.get(key)

    def look(self) -> None:
        """About once a second: raises PeersLost when a worker has ended badly, or has gone silent."""
        if time.monotonic() - self._looked < self._beat_seconds:
            return
        self._looked = time.monotonic()
        if self._has("verdict"):
            verdict = _verdict(self._store.get("verdict"))
            raise PeersLost(f"worker {verdict.worker} has ended", verdict)
        if self._neighbour != self._worker and self._has(f"beat/{self._neighbour}"):
            self._listen()

    def _has(self, key: str) -> bool:
        try:
            return self._store.check([key])
        except RuntimeError as error:
            raise PeersLost("the store of the rendezvous has gone, and worker 0 with it") from error

    def _listen(self) -> None:
        """Each watches one other, so that the work does not grow with the square of the group."""
        beat = self._store.get(f"beat/{self._neighbour}")
        if beat != self._heard[0]:
            self._heard = (beat, time.monotonic())
        elif time.monotonic() - self._heard[1] > self._silence:
            raise PeersLost(f"worker {self._neighbour} has given no sign of life for {self._silence:.0f} s")

    def _beat(self) -> None:
        number = 0
        try:
            while True:
                self._store.set(f"beat/{self._worker}", str(number))
                number += 1
                time.sleep(self._beat_seconds)
        except RuntimeError:  # the store has gone, which every worker notices by itself
            return

    def inputs_brought(self) -> None:
        """Returns when every worker has its inputs: its ranks would wait for the others no longer than torch does."""
        self._meet("inputs")

    def ranks_ended(self) -> None:
        """Returns when the ranks of every worker have ended well."""
        self._meet("ended")

    def tell_of_ranks(self, said: str) -> None:
        """Says something of this worker's ranks, before ``ranks_ended``."""
        with contextlib.suppress(RuntimeError):  # its host has gone, which the next call notices
            self._store.set(f"ranks/{self._worker}", said)

    def told_of_ranks(self) -> list[str]:
        """What all workers have said so, after ``ranks_ended``."""
        keys = [f"ranks/{worker}" for worker in range(self._num_workers)]
        return [self._store.get(key).decode() for key in keys if self._has(key)]

    def all_done(self) -> None:
        """Returns when every worker has come here: the group leaves together, because one exit 0 ends the job."""
        self._meet("done")
        self.leave(self._silence)

    def _meet(self, place: str) -> None:
        if self._store.add(place, 1) == self._num_workers:
            self._store.set(f"all {place}", "")
        while not self._has(f"all {place}"):
            self.look()
            self._stop.pause(0.05)

    def leave(self, seconds: float) -> None:
        """The host of the store leaves last, or after ``seconds``, so that all can read what was said."""
        try:
            self._store.add("left", 1)
            if self._worker == 0:
                self._reaches("left", seconds)
        except (RuntimeError, Stopped):
            return

    def _reaches(self, counter: str, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while self._store.add(counter, 0) < self._num_workers:
            if time.monotonic() > end:
                return False
            self._stop.pause(0.05)
        return True


def _verdict(said: bytes) -> Verdict:
    return Verdict(**json.loads(said))
