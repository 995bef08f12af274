"""Joins the lines that a backend shows with those that only the store still has: each once, attempt by attempt."""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from train_func import events
from train_func.client.logs.numbering import AttemptLine, Numbering, uid_in
from train_func.client.status import LogCut, LogLine, Pod
from train_func.errors import StorageFailed
from train_func.events import LogGap, RanksRestart
from train_func.layout import AttemptFile
from train_func.records import EndRecord, Lease, RunRecord
from train_func.storage import Store, find

NUM_AT_ONCE = 16  # requests to the store
NUM_COMPARED = 64  # last lines that were shown, by which the place in the log is found


@dataclass(frozen=True)
class StoredLog:
    """One worker's log of one attempt; ``pod_uid`` is empty where the log does not name its pod."""

    attempt: int
    worker: int
    key: str
    pod_uid: str


class StoredLogs:
    """What the store holds of the attempts of one generation, as of the last ``look``."""

    def __init__(self, record: RunRecord, store: Store) -> None:
        self._keys = record.keys
        self._store = store
        self.logs: list[StoredLog] = []
        """By attempt and worker."""
        self.numbers: dict[str, int] = {}
        """The attempt of each pod that is known."""
        self.newest = 0
        """The highest number that was claimed."""

    def look(self) -> None:
        """Lists the attempts again; what an earlier look has read is not read again."""
        keys = [entry.key for entry in self._store.list(f"{self._keys.attempts}/")]
        found = {key: file for key in keys if (file := self._keys.attempt_file(key))}
        self.newest = max((file.attempt for file in found.values()), default=0)
        known = {log.key: log for log in self.logs}
        with ThreadPoolExecutor(NUM_AT_ONCE) as readers:
            ends = {key for key, file in found.items() if file.is_end}
            names = [(key, file) for key, file in found.items() if file.is_log]
            logs = readers.map(lambda one: known.get(one[0]) or self._log(one[0], one[1], ends), names)
            self.logs = sorted(logs, key=lambda log: (log.attempt, log.worker))
        for log in self.logs:  # a pod may make several attempts: its lines say where another one begins
            self.numbers.setdefault(log.pod_uid or log.key, log.attempt)
        if (key := self._keys.attempt(self.newest).lease) in found:
            self.numbers.setdefault(self._uid(Lease.from_json, key), self.newest)
        self.numbers.pop("", None)

    def lines(self, log: StoredLog, seen: "Seen | None" = None) -> Iterator[LogLine]:
        """Those of a log, or only those after the ones of its attempt that were ``seen``.

        The log of another attempt in the same pod begins with the first line of the pod too.
        """
        texts = self._texts(log.key)
        first = self.numbers.get(log.pod_uid, log.attempt)
        texts = texts[1:] if log.attempt > first else texts
        begun = seen.attempt or first if seen else 0
        if seen and log.attempt < begun:
            return
        for text in after(texts, seen) if seen and log.attempt == begun else texts:
            yield LogLine(log.worker, log.pod_uid or log.key, text)

    def _log(self, key: str, file: AttemptFile, ends: Collection[str]) -> StoredLog:
        worker = file.worker or 0
        end = self._keys.attempt(file.attempt).end(worker)
        uid = self._uid(EndRecord.from_json, end) if end in ends else ""
        return StoredLog(file.attempt, worker, key, uid or uid_in(next(iter(self._texts(key)), "")))

    def _uid(self, read: Callable[[bytes, str], Lease], key: str) -> str:
        """The pod that a record names; empty where another version of this package wrote it."""
        data = self._store.get(key).data
        try:
            return read(data, key).pod_uid
        except StorageFailed:
            return ""

    def _texts(self, key: str) -> list[str]:
        found = find(self._store, key)  # none when it was deleted since it was listed
        text = found.data.decode(errors="replace") if found else ""
        return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def joined(
    stored: StoredLogs, pods: Iterable[Pod], live: Iterable[LogLine | LogCut], *, worker: int | None
) -> Iterator[AttemptLine]:
    """Every line of every pod; the pods that the backend has forgotten come first.

    Args:
        pods: those whose lines ``live`` begins with, at this moment.
        live: lines of pods; a cut where a pod is gone and may have written more.
        worker: only of this one.
    """
    shown = {pod.uid for pod in pods}
    stored.look()
    _number_living(stored, pods)
    forgotten = [log for log in stored.logs if log.pod_uid not in shown and worker in (None, log.worker)]
    numbering = Numbering(stored.numbers, stored.newest)
    yield from numbering.told(line for log in forgotten for line in stored.lines(log))
    yield from numbering.told(_completed(stored, live))


def _number_living(stored: StoredLogs, pods: Iterable[Pod]) -> None:
    """Where a living pod has claimed the newest number, the pods that live beside it belong to the same attempt."""
    living = [pod.uid for pod in pods if not pod.deleted]
    if stored.newest in (stored.numbers.get(uid) for uid in living):
        stored.numbers.update({uid: stored.newest for uid in living if uid not in stored.numbers})


def _completed(stored: StoredLogs, live: Iterable[LogLine | LogCut]) -> Iterator[LogLine]:
    """The lines, and after each cut what the store has beyond it."""
    seen: dict[str, Seen] = {}
    for line in live:
        so_far = seen.setdefault(line.pod_uid, Seen())
        if isinstance(line, LogLine):
            so_far.add(line.text)
            yield line
            continue
        stored.look()
        for log in [log for log in stored.logs if log.pod_uid == line.pod_uid]:
            yield from stored.lines(log, so_far)


class Seen:
    """How many lines of a pod were shown, of its newest attempt, and the last of them."""

    def __init__(self) -> None:
        self.attempt = 0
        """Its number, where the pod has made others before."""
        self.count = 0
        self.last: deque[str] = deque(maxlen=NUM_COMPARED)

    def add(self, text: str) -> None:
        """Takes a line that was shown."""
        event = events.parse(text)
        if isinstance(event, RanksRestart):
            self.attempt, self.count = event.attempt, 0
            self.last.clear()
        self.count += 1
        self.last.append(text)


def after(stored: list[str], seen: Seen) -> list[str]:
    """The lines of a stored log that come after those shown.

    The last line shown need not be in the log: a line may have been cut, and native code may bypass the worker's log.
    Where the last lines occur more than once, their position decides; the stored log may have a gap in its middle.
    """
    import numpy as np  # beside the notebook it is needed nowhere else

    numbers = {text: number for number, text in enumerate(dict.fromkeys(seen.last))}
    lines = np.array([numbers.get(line, -1) for line in stored], dtype=np.int16)
    counts = np.array(_counts(stored), dtype=np.int64)
    best = (0, 0, -1)  # how many lines agree, how far from the count, where
    agreeing = np.zeros(len(lines) + 1, dtype=np.int16)  # that end before each line and with the one shown last
    for skipped, text in zip(range(len(seen.last) - 1, -1, -1), seen.last, strict=True):
        agreeing[1:] = np.where(lines == numbers[text], agreeing[:-1] + 1, 0)
        if most := int(agreeing.max()):
            places = np.flatnonzero(agreeing == most) - 1
            away = np.abs(counts[places] - (seen.count - skipped))
            nearest = len(places) - 1 - int(np.argmin(away[::-1]))
            best = max(best, (most, -int(away[nearest]), int(places[nearest])))
    if best[0]:
        return stored[best[2] + 1 :]
    return [line for line, count in zip(stored, counts, strict=True) if count > seen.count]


def _counts(stored: list[str]) -> list[int]:
    """Which line of the whole log each is, from 1."""
    counts, count = [], 0
    for line in stored:
        event = events.parse(line)
        count += event.num_lines if isinstance(event, LogGap) else 1
        counts.append(count)
    return counts
