"""What a job has told so far: steps with their losses, evaluations, attempts with their sizes, and how each worker is.

Everything that is drawn of a job is drawn from it, and it is learned anew from the logs by each client that looks.
"""

import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from train_func.client.diagnose.incidents import ending, incidents
from train_func.client.display.chart import Curve, curves_of
from train_func.client.logs import AttemptLine
from train_func.client.status import OPEN, Diagnosis, Pod, Snapshot
from train_func.client.watch import News
from train_func.errors import Cause
from train_func.wire import events, exits

STARTS = "starts: imports what the function uses"  # until a rank of the worker says more
START_SECONDS = 60.0  # after which STARTS is no longer shown: a function may print nothing at all
IN_FUNCTION = "runs the function"
MOST_PRINTED = 40  # lines of rank 0 that are kept
MOST_STEPS = 2_000  # that are kept one by one, many times what a chart shows: of more, every second one is left out
LEAST_SHARE = 5  # percent of its time, below which a part of what a worker does is not shown
RANK_0 = events.OF_RANK.format(0)
OF_A_RANK = events.OF_RANK.partition("{")[0]
BY_CANCEL = (exits.STOPPED, exits.PEER)  # the codes of workers that a cancel ends


@dataclass(frozen=True)
class Point:
    """A step that was done. ``time``: Unix seconds, by the clock of the worker."""

    time: float
    attempt: int
    step: int
    values: Mapping[str, float] = field(default_factory=dict)
    """What was measured, by its name."""
    training: int = 0
    """The number of the training in the function, from 0."""

    @property
    def loss(self) -> float | None:
        """The loss, if it was told."""
        return self.values.get("loss")


@dataclass(frozen=True)
class Group:
    """The group of an attempt, at its start."""

    time: float
    attempt: int
    workers: int
    ranks: int


@dataclass(frozen=True)
class WorkerState:
    """How one worker is."""

    worker: int
    phase: str
    """Phase of its newest pod; Missing where it has none, Cancelled where the cancel of the job has ended it."""
    node: str = ""
    restarts: int = 0
    """How often it, or its ranks alone, were started again, in place or as another pod."""
    losses: int = 0
    """How many attempts have ended because of it, and were followed by another one."""
    memory: int = 0
    """Bytes in use; 0 where it has not told."""
    limit: int = 0
    """Bytes that it may use; 0 where that is not limited."""
    activity: str = ""
    """What it does, or waits for."""


class Trace:
    """What a job has told, as far as its news were taken."""

    def __init__(self) -> None:
        self.state = ""
        """The state of the job, in one word; empty before the first news."""
        self.snapshot = Snapshot()
        """The last look at it."""
        self.hindrances: Sequence[object] = ()
        """What hinders it at the moment."""
        self.failure: Exception | None = None
        """Why waiting cannot help any more."""
        self.is_over = False
        """Whether no look follows."""
        self.trainings: dict[int, int] = {}
        """The number, from 0, of the training that each attempt has begun last, where that is not the first."""
        self.is_current = False
        """Whether all that was written by the last look has been read."""
        self.last_event = 0.0
        """When the last event was told, in Unix seconds; 0 before the first."""
        self.steps: list[Point] = []
        self.evaluations: list[Point] = []
        self.groups: list[Group] = []
        self.saves: list[tuple[int, events.CheckpointSaved]] = []
        """The number of the training, and what was saved of it."""
        self.resumptions: dict[int, events.Resumes] = {}
        """What attempts have gone on from, by their numbers."""
        self.progress: events.StepProgress | None = None
        """How far the training is, as it was told last."""
        self.measured: events.WorkersMeasured | None = None
        """What the workers of the newest group use, and why they are slow, as it was told last."""
        self.audits: dict[str, events.RowsAudited] = {}
        """The audits, by what was audited, such as an epoch."""
        self.precision = ""
        """In which the training computes; empty where that is not known, as of a loop of one's own."""
        self.published: events.Published | None = None
        self.notes: list[str] = []
        """What a person should know, each once though every attempt says it."""
        self.alerts: list[events.Alert] = []
        """Alerts that nothing else tells, as of a rising loss."""
        self.printed: deque[str] = deque(maxlen=MOST_PRINTED)
        """The last lines of rank 0."""
        self.incidents: list[tuple[float, Cause, str]] = []
        """What was told beside the end records: when, the cause and the words."""
        self._reasons: dict[int, tuple[int, str]] = {}  # by attempt: the worker with which the one before it ended
        self._rank_restarts: set[tuple[int, int]] = set()  # worker and attempt, of ranks that began again in their pod
        self._activities: dict[int, str] = {}

    @property
    def group(self) -> Group | None:
        """The newest group; None before the first one has formed."""
        return max(self.groups, key=lambda group: group.attempt, default=None)

    @property
    def num_steps(self) -> int | None:
        """The steps of the whole training, where a worker has told it."""
        return self.progress.num_steps if self.progress else None

    @property
    def last_step(self) -> int:
        """The last step that counts: of the newest attempt that has done one, or has said where it begins."""
        done = ((point.attempt, point.training, point.step) for point in self.steps)
        begun = ((of, self.trainings.get(of, 0), resumption.step) for of, resumption in self.resumptions.items())
        return max([*done, *begun], default=(0, 0, 0))[-1]

    @property
    def training(self) -> int:
        """The number of the training that is drawn: the newest that the newest attempt has done a step of."""
        points = [*self.steps, *self.evaluations]
        return max(((point.attempt, point.training) for point in points), default=(0, 0))[1]

    @property
    def epoch(self) -> float:
        """Where the training is, in epochs; infinite where a worker has not told it."""
        if not self.progress:
            return math.inf
        return self.progress.epoch * self.last_step / max(1, self.progress.step)

    @property
    def first_steps(self) -> dict[tuple[int, int], int]:
        """The first step that each attempt has done of each training, by the numbers of training and attempt."""
        firsts: dict[tuple[int, int], int] = {}
        for point in self.steps:
            key = point.training, point.attempt
            firsts[key] = min(point.step, firsts.get(key, point.step))
        return firsts

    @property
    def is_stepping(self) -> bool:
        """Tells whether the newest attempt has done a step."""
        newest = max((point.attempt for point in self.steps), default=0)
        return newest >= (self.group.attempt if self.group else 1)

    @property
    def summary(self) -> str:
        """The state, how far it is, and the newest value of each metric, in one line."""
        words = [self.state or "Created"]
        if self.progress:
            words.append(f"step {self.last_step} of {self.progress.num_steps}")
        return ", ".join([*words, *(f"{name}={curve[-1][1]:.4g}" for name, curve in self.curves().items())])

    def take(self, news: News) -> None:
        """Learns what a look has brought."""
        self.state, self.snapshot, self.hindrances = news.state, news.snapshot, news.hindrances
        for line in news.lines:
            self._hear(line)
        now = time.time()
        self.incidents += [(now, diagnosis.cause, diagnosis.message) for diagnosis in news.diagnoses]
        self.is_current, self.is_over = not news.snapshot.has_more, news.is_last
        if news.failure and not self.failure:
            self.incidents.append((now, news.failure.cause, str(news.failure)))
        self.failure = news.failure

    def reason(self, attempt: int) -> str:
        """Returns why this attempt has followed the one before it; empty where that is not known."""
        worker, words = self._reasons.get(attempt, (None, ""))
        loss = self.loss(attempt - 1, worker)
        return loss.message if loss else words

    def loss(self, attempt: int, worker: int | None) -> Diagnosis | None:
        """Returns how the backend saw a worker end in an attempt that could not write down why; None where it did not.

        ``worker``: which one; None: any.
        """
        begins = {group.attempt: group.time for group in self.groups}
        # It is seen a little later than its peers notice it, which may be when they are in the next attempt.
        begin, end = begins.get(attempt, math.inf), begins.get(attempt + 2, math.inf)
        snapshot = self.snapshot.of_this_job()
        for incident in incidents(snapshot.pods, snapshot.events, max_attempts=0):  # whatever may follow
            is_unwritten = worker in (None, incident.worker) and not incident.diagnosis.worker_message
            if is_unwritten and incident.time and begin <= incident.time.timestamp() < end:
                return incident.diagnosis
        return None

    def curves(self) -> dict[str, Curve]:
        """Returns the curve of each metric in the training that is drawn, without the steps that were done again."""
        newest, firsts = self.training, self.first_steps
        rows = ([point for point in points if point.training == newest] for points in (self.steps, self.evaluations))
        return curves_of((step.step, step.values) for of_rows in rows for step in unrepeated(of_rows, firsts))

    def workers(self) -> list[WorkerState]:
        """Returns how each worker is that the job has or should have."""
        pods: dict[int, list[Pod]] = {}
        for pod in self.snapshot.pods:
            pods.setdefault(pod.worker, []).append(pod)
        status = self.snapshot.status
        expected = status.workers if status and status.workers else 0
        is_done = self.num_steps is not None and self.last_step >= self.num_steps
        return [self._worker(worker, pods.get(worker, []), is_done) for worker in sorted({*pods, *range(expected)})]

    def _worker(self, worker: int, pods: Sequence[Pod], is_done: bool) -> WorkerState:
        if not pods:
            return WorkerState(worker, "Missing")
        newest, activity = pods[-1], self._activities.get(worker, "")
        restarts = len(pods) - 1 + newest.restarts + sum(number == worker for number, _ in self._rank_restarts)
        begun = self.group.attempt if self.group else 0
        losses = sum(root == worker for attempt, (root, _) in self._reasons.items() if attempt <= begun)
        if newest.phase != "Running" or newest.deleted:
            phase = "Deleted" if newest.deleted and newest.phase in (*OPEN, "Unknown") else newest.phase
            why = ending(newest.exit_code, newest.reason, newest.message) if newest.exit_code else newest.reason
            why = "" if newest.exit_code == 0 else why
            if self.state == "Cancelled" and phase == "Failed" and newest.exit_code in BY_CANCEL:
                phase, why = "Cancelled", "stopped by the cancel"
            return WorkerState(worker, phase, newest.node, restarts, losses, activity=why)
        usage = self.measured.workers.get(str(worker), {}) if self.measured else {}
        memory, limit = usage.get("memory", 0), usage.get("limit", 0)
        if activity == STARTS and self.group and time.time() - self.group.time > START_SECONDS:
            activity = IN_FUNCTION
        activity = activity or self._training(list(usage.get("ranks", {}).values()), is_done)
        return WorkerState(worker, newest.phase, newest.node, restarts, losses, memory, limit, activity)

    def _training(self, shares: Sequence[Sequence[int]], is_done: bool) -> str:
        """Returns what a worker does that says nothing else, by the shares of the time of its ranks."""
        means = [round(sum(part) / len(part)) for part in zip(*shares, strict=True)]
        means = [mean if mean >= LEAST_SHARE else 0 for mean in means]
        if is_done:
            return "all steps are done: evaluates, saves, publishes"
        if any(means):
            rest = 100 - sum(means)
            return f"trains: {events.WorkersMeasured.words(means)}{f', {rest} % other' if rest > LEAST_SHARE else ''}"
        return "trains" if self.steps else ""

    def _hear(self, line: AttemptLine) -> None:
        event, attempt = line.event, line.attempt.number
        if event is None:
            if line.text.startswith(OF_A_RANK) and self._activities.get(line.worker) == STARTS:
                self._activities[line.worker] = IN_FUNCTION
            if line.text.startswith(RANK_0):
                self.printed.append(line.text.removeprefix(RANK_0))
            return
        when, training = seconds_of(event), self.trainings.get(attempt, 0)
        self.last_event = max(self.last_event, when)
        formed = self.group.attempt if self.group else 0  # the log of another worker may have been read before
        match event:
            case events.StepProgress():
                curve = [(step, when - age, loss) for step, age, loss in event.points]
                for step, ended, loss in curve or [(event.step, when, event.loss)]:
                    self._add(Point(ended, attempt, step, {} if loss is None else {"loss": loss}, training))
                self.progress = event
                self._activities.clear()
            case events.Reported():
                self._add(Point(when, attempt, event.step, _numbers(event.metrics.items()), training))
                self._activities.clear()
            case events.Evaluated():
                named = ((f"{event.prefix}_{name}", value) for name, value in event.metrics.items())
                self.evaluations.append(Point(when, attempt, event.step, _numbers(named), training))
            case events.AttemptStarts():
                self.groups.append(Group(when, event.attempt, event.num_workers, event.num_ranks))
                self._activities = dict.fromkeys(range(event.num_workers), STARTS)
                self.measured = None
            case events.Stage(precision=precision):  # of a session: it is open
                self.trainings[attempt] = event.training or training
                self.precision = precision or self.precision
                loading = {
                    worker: "loads model and data"
                    for worker, does in self._activities.items()
                    if does in (STARTS, IN_FUNCTION)
                }
                self._activities |= loading
            case events.WorkersMeasured():
                self.measured = event
            case events.Resumes():
                self.resumptions[event.attempt] = event
            case events.RanksRestart():
                self._reasons[event.attempt] = event.follows, f"worker {event.follows}: {event.message}"
                self._rank_restarts.add((event.worker, event.attempt))
            case events.CheckpointSaved():
                self.saves.append((training, event))
            case events.RowsAudited():
                self.audits[event.what] = event
            case events.Published():
                self.published = event
            case events.Alert():
                self.alerts += [] if event.repeats else [event]
            case events.Note():
                self.notes += [] if event.text in self.notes else [event.text]
            case events.CheckpointFailed() | events.WaitsForStore():
                self.incidents.append((when, "storage", str(event)))
                self._activities[line.worker] = str(event)
            case events.WorkerStarts() if attempt > formed:
                self._activities[line.worker] = "starts"
            case events.WaitsForPeers() if attempt > formed:
                self._activities[line.worker] = f"waits for the other workers: {event.why}"
            case events.RankStops() | events.WorkerEnds():
                if attempt >= formed:
                    self._activities[line.worker] = str(event).partition("\n")[0]
                if isinstance(event, events.WorkerEnds) and event.exit_code:
                    root = event.worker if event.follows is None else event.follows
                    self._reasons.setdefault(attempt + 1, (root, event.message))

    def _add(self, step: Point) -> None:
        self.steps.append(step)
        if len(self.steps) > MOST_STEPS:
            del self.steps[1:-1:2]


def unrepeated(points: Iterable[Point], first_steps: Mapping[tuple[int, int], int]) -> Iterator[Point]:
    """Yields the points in their order, without those that a later attempt has measured again, or will.

    ``first_steps`` are those of ``Trace.first_steps``, which tell more than points of evaluations do.
    """
    groups: dict[tuple[int, int], list[Point]] = {}
    for point in points:
        groups.setdefault((point.training, point.attempt), []).append(point)
    first_points = {key: min(point.step for point in group) for key, group in groups.items()}
    firsts = [*first_steps.items(), *first_points.items()]
    for training, attempt in sorted(groups):
        again = min((step for (of, later), step in firsts if of == training and later > attempt), default=math.inf)
        group = (point for point in groups[training, attempt] if point.step < again)
        yield from sorted(group, key=lambda point: point.step)


def _numbers(metrics: Iterable[tuple[str, object]]) -> dict[str, float]:
    """Returns those that are numbers."""
    return {name: value for name, value in metrics if isinstance(value, (int, float))}


def seconds_of(event: events.Event) -> float:
    """Returns when an event happened, in Unix seconds by the clock of the worker."""
    return datetime.fromisoformat(event.time).timestamp()
