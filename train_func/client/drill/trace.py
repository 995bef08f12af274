"""What a job tells while it is drilled: steps with their losses, attempts with their sizes, incidents."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime

from train_func.client.diagnose import JobMonitor
from train_func.client.kinds.kind import Operator
from train_func.client.logs import AttemptLine, RunLogs
from train_func.client.status import Snapshot
from train_func.client.stored_run import ENDED, submission_time
from train_func.client.watch import View, until_read
from train_func.errors import Cause
from train_func.storage import Store
from train_func.wire.events import (
    AttemptStarts,
    CheckpointFailed,
    Event,
    Reported,
    Resumes,
    StepProgress,
    WaitsForStore,
)
from train_func.wire.records import RunRecord

SILENT_SECONDS = 60.0  # after which an attempt that tells no step counts as training


@dataclass(frozen=True)
class Step:
    """A step that was done. ``time``: Unix seconds, by the clock of the worker."""

    time: float
    attempt: int
    step: int
    loss: float | None


@dataclass(frozen=True)
class Group:
    """The group of an attempt, at its start."""

    time: float
    attempt: int
    workers: int
    ranks: int


class Trace:
    """Follows a job by its looks, as far as it is asked to."""

    def __init__(
        self,
        record: RunRecord,
        store: Store,
        views: Iterator[View],
        operator: Operator | None,
        note: Callable[[str], None],
    ) -> None:
        """Looks at nothing yet.

        Args:
            record: of the run.
            store: of the run.
            views: looks at the job, without end.
            operator: executes the job, on a cluster.
            note: prints what hinders the job, or happened to a worker.
        """
        self._note = note
        self._views = until_read(views)
        self._logs, self._newest = RunLogs(record, store), submission_time(store, record.keys)
        self._monitor = JobMonitor(record, operator)
        self.state = ""
        """Of the job, as the last look has shown it."""
        self.is_over = False
        """Whether no look follows, because the job has ended, or hangs for good."""
        self.is_current = False
        """Whether all that was written by now has been read."""
        self.steps: list[Step] = []
        self.groups: list[Group] = []
        self.resumptions: dict[int, Resumes] = {}
        """What attempts have gone on from, by their numbers."""
        self.num_steps: int | None = None
        """Of the whole training, where a worker has told it."""
        self.incidents: list[tuple[float, Cause, str]] = []
        """What was told beside the end records: when, the cause and the words."""

    @property
    def group(self) -> Group | None:
        """The newest group; None before the first one has formed."""
        return max(self.groups, key=lambda group: group.attempt, default=None)

    @property
    def attempt(self) -> int:
        """The number of the newest attempt; 0 before the first one."""
        return self.group.attempt if self.group else 0

    @property
    def last_step(self) -> int:
        """The highest step that was done; 0 before the first one."""
        return max((step.step for step in self.steps), default=0)

    @property
    def is_training(self) -> bool:
        """Returns whether the newest group has done a step, or has been there for long without telling one."""
        group = self.group
        if group is None:
            return False
        return any(step.attempt == group.attempt for step in self.steps) or time.time() - group.time > SILENT_SECONDS

    def until(self, condition: Callable[[], object]) -> bool:
        """Looks until the condition holds; returns False where the job is over before that."""
        while not condition():
            view = None if self.is_over else next(self._views, None)
            if view is None:
                self.is_over = True
                return bool(condition())
            self._take(*view)
        return True

    def first_new(self, attempt: int, begun: float, done: int = -1) -> Step | None:
        """The first step after ``begun``, of this or a later attempt, that had not been done before; None if none was.

        For a function that tells no steps it is the step 0 of the next group.

        Args:
            attempt: the first one that may do it.
            begun: Unix seconds.
            done: the last step that was done before, where more is known of that than steps tell.
        """
        before = [step.step for step in self.steps if step.attempt < attempt or step.time < begun]
        after = [step for step in self.steps if step.attempt >= attempt and step.time >= begun]
        if not self.steps:
            after = [Step(group.time, group.attempt, 0, None) for group in self.groups if group.attempt >= attempt]
        new = [step for step in after if step.step > max([*before, done])]
        return min(new, key=lambda step: step.time, default=None)

    def _take(self, snapshot: Snapshot, state: str) -> None:
        is_first, self.state = not self.state, state
        for line in self._logs.lines(snapshot):
            self._hear(line)
        now = time.time()
        diagnoses = self._monitor.look(snapshot)
        for diagnosis in () if is_first else diagnoses:  # what had happened before the drill is no news
            self._note(str(diagnosis))
            self.incidents.append((now, diagnosis.cause, diagnosis.message))
        self.is_current = not snapshot.has_more
        if state in ENDED and self.is_current:
            for line in self._logs.finish(snapshot, is_over=True):
                self._hear(line)
        if failure := self._monitor.failure():
            self._note(str(failure))
            self.incidents.append((now, failure.cause, str(failure)))
            self.is_over = True

    def _hear(self, line: AttemptLine) -> None:
        event, attempt = line.event, line.attempt.number
        if event is None or (self._newest and line.attempt.submitted not in ("", self._newest)):
            return
        when = _seconds(event)
        match event:
            case StepProgress():
                self.num_steps = event.num_steps
                self.steps.append(Step(when, attempt, event.step, event.loss))
            case Reported():
                loss = event.metrics.get("loss")
                self.steps.append(Step(when, attempt, event.step, loss if isinstance(loss, (int, float)) else None))
            case AttemptStarts():
                self.groups.append(Group(when, event.attempt, event.num_workers, event.num_ranks))
            case Resumes():
                self.resumptions[event.attempt] = event
            case CheckpointFailed() | WaitsForStore():
                self.incidents.append((when, "storage", str(event)))


def _seconds(event: Event) -> float:
    return datetime.fromisoformat(event.time).timestamp()
