"""The lines of the workers, attempt by attempt: of living pods from the backend, of those that are gone from the store.

The log of a pod that goes while it is followed is continued from the store, behind as many lines as were shown. Lines
that native code wrote past the worker's log are not in the store, so that a few may be missing or come twice there;
the backend's last lines of a pod that was killed may be in neither.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime

from train_func.client.status import LogLine, LogPosition, Snapshot
from train_func.errors import JobNotFound, StorageFailed
from train_func.storage import Store, find
from train_func.text import shown
from train_func.wire import events
from train_func.wire.events import AttemptStarts, Event, LogGap, RanksRestart, WorkerJoins, WorkerStarts
from train_func.wire.records import RunRecord

NUM_AT_ONCE = 16  # requests to the store


class LogText(Iterator[str]):
    """Iterated over, it gives every line once; its repr reads the log anew, and obeys nothing that a worker wrote."""

    def __init__(self, entries: "Callable[[], Iterator[AttemptLine]]", *, follow: bool) -> None:
        self.entries = entries
        """Reads the log anew: its lines with their attempts, workers and events."""
        self._lines: Iterator[str] | None = None
        self._follow = follow

    def __next__(self) -> str:
        self._lines = self._lines or with_headings(self.entries())
        return next(self._lines)

    def __repr__(self) -> str:
        if self._follow:
            return "the lines as they come: iterate over them"
        return shown("\n".join(with_headings(self.entries())))


class RunLogs:
    """Gives every line of every pod once, with its attempt; pods that the backend has forgotten come first."""

    def __init__(
        self, record: RunRecord, store: Store, worker: int | None = None, *, is_followed: bool = False
    ) -> None:
        """``worker``: whose lines alone are given. ``is_followed``: a store that is away is asked again later."""
        self._keys, self._store, self._worker, self._is_followed = record.keys, store, worker, is_followed
        self._has_begun = False  # whether the store has told the attempts that there were
        self._waiting: list[LogLine] = []  # until it has
        self._numbers: dict[str, int] = {}  # by pod: the first attempt that it made
        self._numbering = Numbering(self._numbers, 0)
        self._pods: dict[str, str] = {}  # by the key of a log in the store
        self._shown: Counter[str] = Counter()  # lines, by pod
        self._completed: set[str] = set()

    def lines(self, snapshot: Snapshot) -> "Iterator[AttemptLine]":
        """Yields the lines that are new with this snapshot."""
        # What the store has of pods that are gone comes before the lines of those that replace them.
        yield from self._complete(snapshot.lost, snapshot)
        self._waiting += snapshot.lines
        self._shown.update(line.pod_uid for line in snapshot.lines)
        if self._has_begun:
            yield from self._new()

    def finish(self, snapshot: Snapshot, *, is_over: bool) -> "Iterator[AttemptLine]":
        """Yields the rest of the logs that could not be read to their ends; of all logs if the job ``is_over``."""
        rest = {
            uid
            for uid, position in snapshot.positions.items()
            if not position.is_complete and (is_over or position.failures)
        }
        yield from self._complete(rest, snapshot)
        yield from self._new()  # none, unless the store was away all the time

    def _new(self) -> "Iterator[AttemptLine]":
        lines, self._waiting = self._waiting, []
        yield from self._numbering.number(lines)

    def _complete(self, uids: Iterable[str], snapshot: Snapshot) -> "Iterator[AttemptLine]":
        """Yields what the store has of these pods, and at first of all that are gone, unless it is away."""
        uids = set(uids) - self._completed
        if self._has_begun and not uids:
            return
        try:
            (keys, newest), first = self._look(), uids
            if not self._has_begun:
                # Where a living pod has claimed the newest number, those that live beside it are of the same attempt.
                living = [pod.uid for pod in snapshot.pods if not pod.deleted]
                if newest in map(self._numbers.get, living):
                    self._numbers |= {uid: newest for uid in living if uid not in self._numbers}
                self._numbering.newest = newest
                uids |= {*self._pods.values()} - {pod.uid for pod in snapshot.pods}
                first = {uid for uid in uids if not self._shown[uid]}  # the heads of the others wait
            for part in (first, uids - first):
                stored = [key for key in keys if self._pods[key] in part]
                yield from self._numbering.number(self._stored(stored))
                yield from self._new()
        except StorageFailed as failure:
            if self._is_followed and failure.reason == "unreachable":
                return
            raise
        self._has_begun = True
        self._completed |= uids

    def _look(self) -> tuple[list[str], int]:
        """The keys of the logs in the store, by attempt and worker, and the highest attempt that was claimed.

        Learns the pods of those that are new.
        """
        keys = [entry.key for entry in self._store.list(f"{self._keys.attempts}/")]
        files = {key: file for key in keys if (file := self._keys.attempt_file(key))}
        newest = max((file.attempt for file in files.values()), default=0)
        logs = [key for key, file in files.items() if file.is_log]
        logs.sort(key=lambda key: (files[key].attempt, files[key].worker))
        new = [key for key in logs if key not in self._pods]
        with ThreadPoolExecutor(NUM_AT_ONCE) as readers:
            self._pods |= zip(new, readers.map(self._pod_of, new), strict=True)
        for key in logs:
            self._numbers.setdefault(self._pods[key], files[key].attempt)
        lease = self._keys.attempt(newest).lease
        if lease in files and (pod := self._pod_in(lease)):
            self._numbers.setdefault(pod, newest)
        return logs, newest

    def _pod_of(self, key: str) -> str:
        """The pod of a log; where nothing names it, the key stands for it."""
        if pod := self._pod_in(f"{key.removesuffix('.log')}.json"):
            return pod
        first = events.parse(next(iter(self._texts(key)), ""))
        return first.pod_uid if isinstance(first, WorkerStarts) else key

    def _pod_in(self, key: str) -> str:
        """The pod that a lease or an end record of any version names; empty where it is gone, or damaged."""
        try:
            record = find(self._store, key)
            return str(json.loads(record.data)["pod_uid"]) if record else ""
        except (ValueError, TypeError, KeyError):
            return ""
        except StorageFailed as failure:
            if failure.reason == "damaged":
                return ""
            raise

    def _stored(self, keys: Iterable[str]) -> Iterator[LogLine]:
        """Yields the lines of these logs; of each pod only those behind as many as were shown.

        The log of another attempt in the same pod begins with the first line of the pod too.
        """
        begun, num_left = set[str](), Counter(self._shown)
        for key in keys:
            pod, file = self._pods[key], self._keys.attempt_file(key)
            worker = file.worker if file and file.worker is not None else 0
            texts = self._texts(key)[1 if pod in begun else 0 :] if self._worker in (None, worker) else []
            begun.add(pod)
            for text in texts:
                event = events.parse(text)
                num_left[pod] -= event.num_lines if isinstance(event, LogGap) else 1
                if num_left[pod] < 0:
                    self._shown[pod] -= num_left[pod]
                    num_left[pod] = 0
                    yield LogLine(worker, pod, text)

    def _texts(self, key: str) -> list[str]:
        log = find(self._store, key)  # none when it was deleted since it was listed
        text = log.data.decode(errors="replace") if log else ""
        return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def is_read(snapshot: Snapshot) -> bool:
    """Returns whether no more lines can come of the pods that are followed."""
    return not snapshot.has_more and all(
        pod.deleted
        or pod.phase == "Pending"
        or snapshot.positions.get(pod.uid, LogPosition(is_complete=True)).is_complete
        for pod in snapshot.pods
    )


@dataclass(eq=False)
class Attempt:
    """One (re)start of all workers."""

    number: int
    submitted: str
    """Time of the submission that it belongs to, ISO; empty where no event names it."""
    started: str
    """Time at which its first worker started, ISO; empty where no event names it."""
    first: bool
    """Whether it is the first of its submission."""
    formed: bool = False
    """Whether its number is known: a worker that starts afterwards belongs to a later attempt."""
    pods: dict[int, str] = field(default_factory=dict)

    @property
    def heading(self) -> str:
        """The line before its lines."""
        again = " again" if self.number > 1 else ""
        what = f"submitted{again} {_clock(self.submitted)}" if self.first and self.submitted else ""
        what = what or f"started{again} {_clock(self.started)}"
        return f"--- attempt {self.number}, {what.rstrip()} ---"


@dataclass(frozen=True)
class AttemptLine:
    """One line of one worker, as a person reads it; ``late``: lines of a later attempt came before."""

    attempt: Attempt
    worker: int
    text: str
    late: bool
    event: Event | None = None
    """The event that the line reports; None for a printed line."""

    def __str__(self) -> str:
        label = f"worker {self.worker}, attempt {self.attempt.number}" if self.late else f"worker {self.worker}"
        return f"[{label}] {self.text}"


def with_headings(lines: Iterable[AttemptLine]) -> Iterator[str]:
    """The lines as text, and a heading before those of each attempt."""
    last: Attempt | None = None
    for line in lines:
        if line.attempt is not last and not line.late:
            last = line.attempt
            yield last.heading
        yield str(line)


def of_attempt(
    lines: Iterable[AttemptLine], number: int, name: str, *, num_followed: Callable[[], int]
) -> Iterator[AttemptLine]:
    """The lines of one attempt, none of them late; raises JobNotFound when the run ``name`` has none of it.

    ``num_followed``: returns of how many workers lines come, at most, until each has gone on to a later attempt; 0:
    until there are no more. One worker may have begun that attempt before the first line of another one is read.
    """
    newest, num_workers, last = 0, math.inf, dict[int, Attempt]()  # by worker
    for line in lines:
        newest = max(newest, line.attempt.number)
        if line.attempt.number >= number and isinstance(line.event, AttemptStarts):
            num_workers = min(num_workers, line.event.num_workers)
        if line.attempt.number == number:
            yield replace(line, late=False)
        elif line.worker not in last:
            continue
        last[line.worker] = line.attempt
        num_gone_on = sum(each.number > number and each.formed for each in last.values())
        if 0 < min(num_followed(), num_workers) <= num_gone_on:
            break
    if not last:
        has = f"it has the attempts 1 to {newest}" if newest else "none has begun"
        raise JobNotFound(f"{name} has no attempt {number} with a log: {has}")


class Numbering:
    """Finds the attempt of each line; the caller may add ``known`` numbers, by pod uid, at any time.

    A worker's first event names its pod, its start and its submission; worker 0, and each worker of an elastic job,
    later reports the number of the attempt. Until then the number is predicted: it is the next one.
    """

    def __init__(self, known: Mapping[str, int], newest: int) -> None:
        """``newest``: the highest number that the store knows."""
        self._known = known
        self.newest = newest
        self._attempts: dict[int, Attempt] = {}
        self._attempt_of_pod: dict[str, Attempt] = {}  # by uid

    def number(self, lines: Iterable[LogLine]) -> Iterator[AttemptLine]:
        """Each line with its attempt."""
        for line in lines:
            event, attempt = events.parse(line.text), self._attempt_of_pod.get(line.pod_uid)
            if attempt is None or isinstance(event, WorkerStarts):  # a container may start again in its pod
                submitted, started = (event.submitted, event.time) if isinstance(event, WorkerStarts) else ("", "")
                known = 0 if attempt else self._known.get(line.pod_uid, 0)
                attempt = self._assign(line, known or self._predict(line.worker, submitted), submitted, started)
            if isinstance(event, AttemptStarts | RanksRestart | WorkerJoins):
                if event.attempt != attempt.number:
                    started = event.time if attempt.formed else attempt.started
                    attempt = self._assign(line, event.attempt, attempt.submitted, started)
                attempt.formed = True
            is_late = attempt.number != max(self._attempts)
            yield AttemptLine(attempt, line.worker, events.readable(line.text), late=is_late, event=event)

    def _assign(self, line: LogLine, number: int, submitted: str, started: str) -> Attempt:
        """Begins the attempt, if it is a new one, and counts the pod among its own."""
        if number not in self._attempts:
            before = self._attempts.get(number - 1)
            is_first = before.submitted != submitted if before else number == 1
            self._attempts[number] = Attempt(number, submitted, started, is_first)
        attempt = self._attempt_of_pod[line.pod_uid] = self._attempts[number]
        attempt.pods[line.worker] = line.pod_uid
        attempt.formed = attempt.formed or self._known.get(line.pod_uid) == number
        return attempt

    def _predict(self, worker: int, submitted: str) -> int:
        """The attempt whose workers are still starting, or the next one."""
        newest = max(self._attempts, default=0)
        if last := self._attempts.get(newest):
            is_formed = last.formed or newest in map(self._known.get, last.pods.values())
            if last.submitted == submitted and not (is_formed and worker in last.pods):
                return newest
        return max(newest, self.newest, *self._known.values()) + 1


def _clock(moment: str) -> str:
    """Local time of day; with the date unless it is today; empty for no time."""
    try:
        here = datetime.fromisoformat(moment).astimezone()
    except ValueError:
        return ""
    return here.strftime("%H:%M:%S" if here.date() == datetime.now().astimezone().date() else "%Y-%m-%d %H:%M:%S")
