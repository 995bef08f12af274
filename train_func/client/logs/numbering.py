"""Finds the attempt of each line, and writes the heading before the lines of each attempt.

A worker's first event names its pod, its start and its submission; worker 0 later reports the number of the attempt.
Until then the number is predicted: it is the next one.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from train_func import events
from train_func.client.status import LogLine
from train_func.errors import JobNotFound
from train_func.events import AttemptStarts, Event, RanksRestart, WorkerStarts


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


def headed(lines: Iterable[AttemptLine]) -> Iterator[str]:
    """The lines as text, and a heading before those of each attempt."""
    last: Attempt | None = None
    for told in lines:
        if told.attempt is not last and not told.late:
            last = told.attempt
            yield last.heading
        yield str(told)


def of_attempt(lines: Iterable[AttemptLine], number: int, name: str) -> Iterator[str]:
    """The lines of one attempt as text; raises JobNotFound when the run ``name`` has none of it."""
    found = newest = 0
    for told in lines:
        newest = max(newest, told.attempt.number)
        if told.attempt.number == number:
            found += 1
            yield f"[worker {told.worker}] {told.text}"
        elif told.attempt.number > number and told.attempt.formed:
            break
    if not found:
        has = f"it has the attempts 1 to {newest}" if newest else "none has begun"
        raise JobNotFound(f"{name} has no attempt {number} with a log: {has}")


def uid_in(first_line: str) -> str:
    """The pod that a worker's first line names; empty when it is no such line."""
    first = events.parse(first_line)
    return first.pod_uid if isinstance(first, WorkerStarts) else ""


class Numbering:
    """Numbers the lines of all pods; the caller may add ``known`` numbers, by pod uid, at any time."""

    def __init__(self, known: Mapping[str, int], newest: int) -> None:
        """``newest``: the highest number that the store knows."""
        self._known = known
        self._newest = newest
        self._attempts: dict[int, Attempt] = {}
        self._of: dict[str, Attempt] = {}
        self._last: Attempt | None = None

    def told(self, lines: Iterable[LogLine]) -> Iterator[AttemptLine]:
        """Each line with its attempt."""
        for line in lines:
            event = events.parse(line.text)
            if isinstance(event, WorkerStarts) and line.pod_uid in self._of:
                self._start_again(line, event)
            attempt = self._of.get(line.pod_uid) or self._join(line, event)
            if isinstance(event, RanksRestart) or (line.worker == 0 and isinstance(event, AttemptStarts)):
                attempt = self._corrected(line, attempt, event.attempt, event.time)
            text = events.readable(line.text)
            yield AttemptLine(attempt, line.worker, text, late=attempt is not self._last, event=event)

    def _join(self, line: LogLine, event: Event | None) -> Attempt:
        submitted, started = (event.submitted, event.time) if isinstance(event, WorkerStarts) else ("", "")
        number = self._known.get(line.pod_uid) or self._predicted(line, submitted)
        attempt = self._attempts.get(number) or self._begin(number, submitted, started)
        attempt.pods[line.worker] = line.pod_uid
        attempt.formed = self._formed(attempt)
        self._of[line.pod_uid] = attempt
        return attempt

    def _start_again(self, line: LogLine, event: WorkerStarts) -> None:
        """The container has started again in its pod, for the attempt that begins now, or for the next one."""
        number = self._predicted(line, event.submitted)
        attempt = self._attempts.get(number) or self._begin(number, event.submitted, event.time)
        attempt.pods[line.worker] = line.pod_uid
        self._of[line.pod_uid] = attempt

    def _begin(self, number: int, submitted: str, started: str) -> Attempt:
        before = self._attempts.get(number - 1)
        first = before.submitted != submitted if before else number == 1
        attempt = self._attempts[number] = Attempt(number, submitted, started, first)
        if self._last is None or number > self._last.number:
            self._last = attempt
        return attempt

    def _predicted(self, line: LogLine, submitted: str) -> int:
        """The attempt whose workers are still starting, or the next one."""
        last = self._last
        if last and last.submitted == submitted and not (self._formed(last) and line.worker in last.pods):
            return last.number
        return max(last.number if last else 0, self._newest, *self._known.values()) + 1

    def _formed(self, attempt: Attempt) -> bool:
        return attempt.formed or any(self._known.get(uid) == attempt.number for uid in attempt.pods.values())

    def _corrected(self, line: LogLine, attempt: Attempt, number: int, time: str) -> Attempt:
        if attempt.number != number:
            started = time if attempt.formed else attempt.started
            attempt = self._attempts.get(number) or self._begin(number, attempt.submitted, started)
            attempt.pods[line.worker] = line.pod_uid
            self._of[line.pod_uid] = attempt
        attempt.formed = True
        return attempt


def _clock(moment: str) -> str:
    """Local time of day; with the date unless it is today; empty for no time."""
    try:
        here = datetime.fromisoformat(moment).astimezone()
    except ValueError:
        return ""
    return here.strftime("%H:%M:%S" if here.date() == datetime.now().astimezone().date() else "%Y-%m-%d %H:%M:%S")
