"""One loop looks at a job again and again; wait, watch, result and followed logs are served by it. What watch prints.

Of every line of the workers the display decides whether it is shown, and in which words.
"""

import re
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import replace

from train_func.client.backend import BoundJob
from train_func.client.diagnose import Diagnosis, JobMonitor
from train_func.client.logs import Attempt, AttemptLine, RunLogs, is_read
from train_func.client.status import Snapshot
from train_func.client.stored_run import ENDED
from train_func.text import counted, shown
from train_func.wire.events import (
    OF_RANK,
    AttemptStarts,
    Event,
    LogGap,
    LostPeers,
    Published,
    RanksRestart,
    RankStops,
    Reported,
    Resumes,
    RowsAudited,
    Stage,
    StepProgress,
    WaitsForPeers,
    WaitsForStore,
    WorkerEnds,
    WorkerJoins,
    WorkerStarts,
)

MOST_CPU = 0.03  # of a core, for looks: after one at a large job the pause is longer
SETTLE_SECONDS = 10.0  # after the end of the job, for its pods to end
PROGRESS_SECONDS = 5.0  # between two progress lines
MOST_PRINTED = 50  # lines of rank 0 in that time
SILENT_SECONDS = 60.0  # after which it is said that the job is still looked at; then twice as long
LONGEST_REASON = 200  # characters of a worker's last words; the error of result() has all
RANK_0 = OF_RANK.format(0)
OF_ONE_RANK = re.compile(r"^rank \d+: ")  # before what the rank said
# These tell nothing any more when a later attempt has begun.
OF_THE_MOMENT = (AttemptStarts, Resumes, Stage, StepProgress, Reported, RowsAudited, WaitsForPeers, WaitsForStore)

View = tuple[Snapshot, str]  # what a look has shown, and the state of the job in one word


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


class Display:
    """Prints lines after the seconds since the watching began; of the progress only some, and the last."""

    def __init__(
        self, name: str, how_to_look: Callable[[], str] = str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Prints nothing yet.

        Args:
            name: of the run.
            how_to_look: tells, in words, how a person learns what the ranks of a silent job do.
            clock: in seconds.
        """
        self._name, self._how_to_look, self._clock = name, how_to_look, clock
        self._begun = self._last = clock()
        self._pause = SILENT_SECONDS
        self.state = ""
        """The state that was shown last."""
        self._size = ""
        self._attempt: Attempt | None = None
        self._said: set[Hashable] = set()  # what is not told twice
        self._progress: StepProgress | Reported | None = None  # came too soon after the one before it
        self._progressed = self._printed = -PROGRESS_SECONDS
        self._num_printed = 0

    def show_state(self, state: str, size: str = "") -> None:
        """Shows the state when it, or the ``size`` of the job in it, has changed."""
        if (state, size) != (self.state, self._size):
            self.state, self._size = state, size
            self.say(f"{self._name}: {state}{size and f', {size}'}")

    def show_diagnoses(self, diagnoses: Iterable[Diagnosis]) -> None:
        """Shows what hinders the job, or happened to a worker."""
        for diagnosis in diagnoses:
            if not diagnosis.said or self._is_new((self._attempt, diagnosis.said)):
                self.say(str(diagnosis))

    def show_line(self, line: AttemptLine) -> None:
        """Shows a line if it belongs in the display."""
        if line.attempt is not self._attempt and not line.late:
            self._show_progress()
            self._attempt = line.attempt
        if line.late and isinstance(line.event, OF_THE_MOMENT):
            return
        match line.event:
            case None if line.text.startswith(RANK_0):
                self._show_printed(line.text.removeprefix(RANK_0))
            case None | WorkerStarts() | WorkerJoins() | LogGap() | RankStops() | LostPeers() | WorkerEnds(exit_code=0):
                pass  # what only follows from an end is left to the logs
            case WaitsForStore() | WaitsForPeers() if line.worker != 0:
                pass  # what one waits for, all wait for
            case StepProgress() | Reported() as progress:
                is_last = isinstance(progress, StepProgress) and progress.step >= progress.num_steps
                self._progress = progress
                if is_last or self._clock() - self._progressed >= PROGRESS_SECONDS:
                    self._show_progress()
            case WorkerEnds() as end:
                if self._is_new_end(end):
                    self._show_progress()
                    # In a short line: the error that is raised for it has all.
                    first, _, rest = end.message.partition("\n")
                    cut = f"{first[:LONGEST_REASON]} ..." if rest or len(first) > LONGEST_REASON else first
                    self.say(str(replace(end, message=cut)))
            case RanksRestart(attempt=number) as event:
                if self._is_new(("restart", number)):  # all workers say the same
                    self.say(str(event))
            case RowsAudited() as audit:
                self._show_progress()
                if self._is_new(str(audit)):
                    self.say(str(audit))
            case Event() as event:
                step = getattr(event, "step", None)
                if isinstance(self._progress, StepProgress) and step is not None and self._progress.step < step:
                    self._progress = None  # it would come behind what is newer
                if step is not None or isinstance(event, Published):
                    self._show_progress()
                self.say(str(event))

    def idle(self) -> None:
        """Shows what is due after each look."""
        now = self._clock()
        if self._progress and now - self._progressed >= PROGRESS_SECONDS:
            self._show_progress()
        if now - self._printed >= PROGRESS_SECONDS:
            self._show_unprinted()
        if now - self._last >= self._pause and self.state:
            how = self._how_to_look() if self.state == "Running" else ""
            words = f"still {self.state}, nothing new for {now - self._last:.0f} s{how and f'; {how}'}"
            print(f"{now - self._begun:6.1f} s  {shown(words)}", flush=True)
            self._pause *= 2

    def finish(self, state: str) -> None:
        """Shows the last progress and the last state."""
        self._show_unprinted()
        self._show_progress()
        self.show_state(state)

    def say(self, text: str) -> None:
        """Prints it behind the seconds."""
        self._last, self._pause = self._clock(), SILENT_SECONDS
        print(f"{self._last - self._begun:6.1f} s  {shown(text)}", flush=True)

    def _show_progress(self) -> None:
        progress, self._progress = self._progress, None
        if progress:
            self._progressed = self._clock()
            self.say(str(progress))

    def _show_printed(self, text: str) -> None:
        """A line of rank 0; of many at once only the first."""
        if self._clock() - self._printed >= PROGRESS_SECONDS:
            self._show_unprinted()
            self._printed = self._clock()
        self._num_printed += 1
        if self._num_printed <= MOST_PRINTED:
            self.say(text)

    def _show_unprinted(self) -> None:
        left_out, self._num_printed = self._num_printed - MOST_PRINTED, 0
        if left_out > 0:
            self.say(f"{counted(left_out, 'further line')} of rank 0: logs() shows them")

    def _is_new_end(self, end: WorkerEnds) -> bool:
        """Returns whether no end was shown that this one repeats, or that it, or both, followed from.

        Where a fault of the run comes to every rank, each worker ends with the same words.
        """
        root = end.worker if end.follows is None else end.follows
        is_new_root = self._is_new((self._attempt, root))
        return self._is_new((self._attempt, OF_ONE_RANK.sub("", end.message))) and is_new_root

    def _is_new(self, key: Hashable) -> bool:
        """Returns whether it was not told before; from now on it was."""
        is_new = key not in self._said
        self._said.add(key)
        return is_new


def size_of(snapshot: Snapshot) -> str:
    """How many of its workers a job has, in words; empty where it has all, or that is not known."""
    expected = snapshot.status.workers if snapshot.status else None
    num_running = len(snapshot.running)
    return f"{num_running} of {counted(expected, 'worker')}" if expected and num_running < expected else ""


def show(display: Display, views: Iterator[View], logs: RunLogs, monitor: JobMonitor, newest: str) -> str:
    """Prints until the job has finished or hangs for good, and returns its state.

    Args:
        display: prints.
        views: of the job.
        logs: of its workers.
        monitor: diagnoses what hinders the job.
        newest: time of the newest submission; what belongs to an earlier one is not shown.
    """

    def show_lines(lines: Iterable[AttemptLine]) -> None:
        for line in lines:
            if not newest or line.attempt.submitted in ("", newest):
                display.show_line(line)

    snapshot, state = Snapshot(), ""
    for snapshot, state in until_read(views):
        if state == "Absent":
            return state
        if state not in ENDED:  # an end is shown behind the last lines
            display.show_state(state, size_of(snapshot) if state == "Running" else "")
        show_lines(logs.lines(snapshot))
        display.show_diagnoses(monitor.look(snapshot))
        if failure := monitor.failure():
            display.say(str(failure))
            break
        display.idle()
    show_lines(logs.finish(snapshot, is_over=state in ENDED))
    display.finish(state)
    return state
