"""One loop looks at a job again and again; wait, watch, result, drills and followed logs are served by it."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from train_func.client.backend import BoundJob
from train_func.client.diagnose import Diagnosis, JobMonitor
from train_func.client.logs import AttemptLine, RunLogs, is_read
from train_func.client.status import Snapshot
from train_func.client.stored_run import ENDED
from train_func.errors import JobFailed

MOST_CPU = 0.03  # of a core, for looks: after one at a large job the pause is longer
SETTLE_SECONDS = 10.0  # after the end of the job, for its pods to end

View = tuple[Snapshot, str]  # what a look has shown, and the state of the job in one word


@dataclass(frozen=True)
class News:
    """What a look at a job has brought."""

    state: str
    """Of the job, in one word."""
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


def until_now(snapshots: Iterator[Snapshot]) -> Iterator[View]:
    """Yields as many looks as it takes to read what the workers have written so far."""
    for snapshot in snapshots:
        yield snapshot, ""
        if not snapshot.has_more:
            return


def read_lines(
    views: Iterator[View], logs: RunLogs, monitor: JobMonitor | None, note: Callable[[str], None]
) -> Iterator[AttemptLine]:
    """What the workers say, with the attempts they belong to.

    Args:
        views: of the job.
        logs: of its workers.
        monitor: of a job that is followed to its end; it tells why there is no news.
        note: takes that, and what is left out.
    """
    snapshot, left_out = Snapshot(), ""
    for snapshot, _ in views:
        if snapshot.note and not left_out:
            left_out = snapshot.note
            note(left_out)
        yield from logs.lines(snapshot)
        for diagnosis in monitor.look(snapshot) if monitor else ():
            if diagnosis.cause in ("cluster", "permission"):
                note(diagnosis.message)
    yield from logs.finish(snapshot, is_over=monitor is not None)


def follow(views: Iterator[View], logs: RunLogs, monitor: JobMonitor, newest: str) -> Iterator[News]:
    """Yields what each look brings, until the job has ended and its logs were read, is gone, or hangs for good.

    Args:
        views: of the job.
        logs: of its workers.
        monitor: diagnoses what hinders the job.
        newest: time of the newest submission; lines of an earlier one are left out.
    """

    def of_submission(lines: Iterator[AttemptLine]) -> list[AttemptLine]:
        return [line for line in lines if not newest or line.attempt.submitted in ("", newest)]

    snapshot, state, failure = Snapshot(), "", None
    for snapshot, state in until_read(views):
        if state == "Absent":
            break
        lines, diagnoses = of_submission(logs.lines(snapshot)), monitor.look(snapshot)
        failure = monitor.failure()
        yield News(state, snapshot, lines, diagnoses, monitor.current, failure)
        if failure:
            break
    rest = [] if state == "Absent" else of_submission(logs.finish(snapshot, is_over=state in ENDED))
    yield News(state, snapshot, rest, (), monitor.current, failure, is_last=True)
