"""One loop looks at a job again and again; wait, watch, result, drills and followed logs are served by it."""

import math
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from train_func.client.backend import Backend, BoundJob
from train_func.client.diagnose import JobMonitor, explain
from train_func.client.elsewhere import whereabouts
from train_func.client.logs import AttemptLine, RunLogs, is_read, of_attempt
from train_func.client.status import Diagnosis, Snapshot
from train_func.client.stored_attempts import job_state
from train_func.client.stored_run import (
    ENDED,
    WITHOUT_RESULT,
    Submission,
    how_to,
    published_result,
    submission_time,
)
from train_func.errors import InvalidInput, JobFailed, JobNotFound, StorageFailed
from train_func.storage import Store
from train_func.text import shown
from train_func.wire.events import Alert
from train_func.wire.records import RunRecord

MOST_CPU = 0.03  # of a core, for looks: after one at a large job the pause is longer
HINT_SECONDS = 60.0  # of waiting, before it is said how to see more
SETTLE_SECONDS = 10.0  # after the end of the job, for its pods to end

View = tuple[Snapshot, str]  # what a look has shown, and the state of the job in one word


@dataclass(frozen=True)
class News:
    """What a look at a job has brought."""

    state: str
    """The state of the job, in one word."""
    snapshot: Snapshot
    lines: Sequence[AttemptLine]
    """The new ones, of the newest submission."""
    diagnoses: Sequence[Diagnosis]
    """What is new of what hinders the job, or happened to a worker."""
    hindrances: Sequence[Diagnosis]
    """What hinders it at the moment, and why there is no news of it."""
    failure: JobFailed | None
    """Why waiting cannot help any more."""
    is_last: bool = False
    """Whether no look follows: the job has ended, is gone, or hangs for good."""


class AlertCallback:
    """Calls a function of the user's own with each alert."""

    def __init__(self, function: Callable[[Alert], object], note: Callable[[str], None]) -> None:
        """``note``: prints the first exception that the function raises."""
        self._function, self._note = function, note
        self._has_failed = False

    def take(self, news: News) -> None:
        """Calls it with the alerts that a look has brought."""
        for alert in (line.event for line in news.lines if isinstance(line.event, Alert)):
            try:
                self._function(alert)
            except Exception as error:
                if not self._has_failed:
                    self._has_failed = True
                    where = traceback.extract_tb(error.__traceback__)[-1]
                    place = f"line {where.lineno} of {where.name}"
                    self._note(f"on_alert raised {type(error).__name__}: {error} ({place}); the watching goes on")


def looks(job: BoundJob, worker: int | None = None) -> Iterator[Snapshot]:
    """Looks without end; between two looks is the backend's pause, in which the caller may end it."""
    snapshot = job.look(worker=worker)  # what it costs says nothing of the others: it imports, and reads whole logs
    cost = 0.0
    while True:
        yield snapshot
        if not snapshot.has_more:
            time.sleep(max(job.pause, cost / MOST_CPU))
        begun = time.thread_time()
        snapshot = job.look(snapshot, worker=worker)
        cost = time.thread_time() - begun


@dataclass(frozen=True)
class JobLooks:
    """Looks at the job of a run, for whatever shows it, waits for it or explains it."""

    record: RunRecord
    job: BoundJob
    store: Store
    backend: Backend

    def monitor(self) -> JobMonitor:
        """Returns what diagnoses the snapshots of the job."""
        return JobMonitor(self.record, self.job.operator)

    def views(self, worker: int | None = None) -> Iterator[View]:
        """Looks without end; between two looks is the backend's pause, in which the caller may end it.

        While there is no answer, the state is the last one.
        """
        state = ""
        for snapshot in looks(self.job, worker):
            status = snapshot.status
            if status and not status.is_over:  # while it is deleted, too, its workers may still publish
                status = replace(status, deleting=False)
            if not snapshot.outage or not state:
                try:
                    state = job_state(status, self.record.keys, self.store, self.backend)
                except StorageFailed as failure:
                    if not (state and failure.reason == "unreachable"):
                        raise
            yield snapshot, state

    def wait(self, timeout: float | None, note: Callable[[str], None]) -> str:
        """Waits until the job has finished, and returns its state; ``note`` takes what hinders the job, once.

        Raises JobFailed if the job cannot go on without a change from outside, TimeoutError after ``timeout`` seconds,
        and JobNotFound if there is no such job.
        """
        end = None if timeout is None else time.monotonic() + timeout
        monitor, hint = self.monitor(), time.monotonic() + HINT_SECONDS
        for snapshot, state in self.views(worker=0):
            if state in ENDED:
                break
            if time.monotonic() > hint:
                note(f"still {state}; watch() shows how far it is")
                hint = math.inf
            self.refuse_absent(state)
            for diagnosis in monitor.look(snapshot):
                note(str(diagnosis))
            if failure := monitor.failure():
                raise failure
            if end is not None and time.monotonic() > end:
                why = "".join(f"; {diagnosis.message}" for diagnosis in monitor.current)
                name = self.record.name
                raise TimeoutError(shown(f"{name} is {state} after {timeout} s{why}; wait again, or cancel()"))
        return state

    def refuse_absent(self, state: str) -> None:
        """Raises JobNotFound, with where else the job is, if this state says that there is none."""
        if state == "Absent":
            name, keys = self.record.name, self.record.keys
            is_removed = Submission.newest(self.store, keys) is None
            gone = f"the run {name} was removed" if is_removed else f"there is no job {self.record.job_name}"
            raise JobNotFound(whereabouts(keys, self.store, self.backend) or f"{gone}; submit the run again")

    def news(self, *, is_followed: bool = True) -> Iterator[News]:
        """Yields what each look brings, of the newest submission.

        It ends when the job has ended and its logs were read, is gone, or hangs for good; or, where it is not
        followed, when everything that the workers have written by now was read.
        """
        views = until_read(self.views()) if is_followed else until_now(self.views())
        logs, monitor = RunLogs(self.record, self.store, is_followed=is_followed), self.monitor()
        newest = submission_time(self.store, self.record.keys)

        def of_submission(lines: Iterator[AttemptLine]) -> list[AttemptLine]:
            return [line for line in lines if not newest or line.attempt.submitted in ("", newest)]

        snapshot, state, failure = Snapshot(), "", None
        for snapshot, state in views:
            if state == "Absent":
                break
            lines, diagnoses = of_submission(logs.lines(snapshot)), monitor.look(snapshot)
            failure = monitor.failure()
            yield News(state, snapshot, lines, diagnoses, monitor.current, failure)
            if failure:
                break
        rest = [] if state == "Absent" else of_submission(logs.finish(snapshot, is_over=state in ENDED))
        is_last = is_followed or failure is not None or state in (*ENDED, "Absent")
        yield News(state, snapshot, rest, (), monitor.current, failure, is_last=is_last)

    def lines(
        self,
        note: Callable[[str], None],
        worker: int | None = None,
        attempt: int | None = None,
        *,
        is_followed: bool,
    ) -> Iterator[AttemptLine]:
        """Returns what the workers say, with the attempts that they belong to; of one worker or attempt if it is given.

        If the job ``is_followed``, until the job, or the attempt, has ended. ``note`` takes which logs are left out
        and, while the job is followed, why there is no news.
        """
        views = until_read(self.views(worker)) if is_followed else until_now(self.views(worker))
        logs, monitor = RunLogs(self.record, self.store, worker, is_followed=is_followed), self.monitor()
        left_out = ""

        def read() -> Iterator[AttemptLine]:
            nonlocal left_out
            snapshot = Snapshot()
            for snapshot, _ in views:
                if snapshot.note and not left_out:
                    left_out = snapshot.note
                    note(left_out)
                yield from logs.lines(snapshot)
                for diagnosis in monitor.look(snapshot) if is_followed else ():
                    if diagnosis.cause in ("cluster", "permission"):
                        note(diagnosis.message)
            yield from logs.finish(snapshot, is_over=is_followed)

        def num_followed() -> int:
            return is_followed and (1 if left_out or worker is not None else self.record.run.workers)

        if attempt is None:
            return read()
        return of_attempt(read(), attempt, self.record.name, num_followed=num_followed)

    def how_to_look(self) -> str:
        """Returns what a person can do about a silence; empty where there is nothing."""
        try:
            command = self.job.stacks_command()
        except InvalidInput:
            return ""
        return command and f"`{command}` has every rank write where it is to the log: `{self.how_to('logs')}`"

    def failure(self, state: str) -> JobFailed | None:
        """Returns why a job in this state has no result; None where it has one, or has not ended."""
        if state not in WITHOUT_RESULT:
            return None
        return explain(self.record, self.job, self.store, self.how_to("logs"))

    def result(self) -> Mapping[str, Any]:
        """Returns what ``Job.result`` does, without waiting; nothing where that cannot be read, or is not there."""
        try:
            published = published_result(self.store, self.record.keys)
        except StorageFailed:
            return {}
        return published.values if published else {}

    def how_to(self, verb: str) -> str:
        """Returns what does this with the run: a call in a notebook, a command elsewhere."""
        return how_to(verb, self.record.name, self.backend, self.record.store)


def until_read(views: Iterator[View]) -> Iterator[View]:
    """The views until the job has finished and the logs of its pods were read."""
    finished = None
    for snapshot, state in views:
        yield snapshot, state
        if state in (*ENDED, "Absent"):
            finished = finished or time.monotonic()
            is_late = time.monotonic() - finished > SETTLE_SECONDS
            if is_read(snapshot) or is_late or (state == "Interrupted" and not snapshot.has_more):
                return


def until_now(views: Iterator[View]) -> Iterator[View]:
    """Yields as many looks as it takes to read what the workers have written so far."""
    for view in views:
        yield view
        if not view[0].has_more:
            return
