"""Plain lines: what is printed of a job where nothing better can be drawn, one line for each thing that happens.

Of every line of the workers it is decided here whether it is shown, and in which words.
"""

import re
import sys
import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from datetime import datetime

from train_func.client.display.panel import audits_in_words, is_exact
from train_func.client.display.trace import Trace, seconds_of
from train_func.client.logs import Attempt, AttemptLine
from train_func.client.status import Diagnosis, Snapshot
from train_func.client.stored_run import ENDED
from train_func.client.watch import News
from train_func.errors import JobFailed
from train_func.text import counted, shown
from train_func.wire import events

PROGRESS_SECONDS = 5.0  # between two progress lines
MOST_PRINTED = 50  # lines of rank 0 in that time
SILENT_SECONDS = 60.0  # after which it is said that the job is still looked at; then twice as long
LONGEST_REASON = 200  # characters of a worker's last words; the error of result() has all
RANK_0 = events.OF_RANK.format(0)
OF_ONE_RANK = re.compile(r"^rank \d+: ")  # before what the rank said
# These tell nothing any more when a later attempt has begun.
OF_THE_MOMENT = (
    events.AttemptStarts,
    events.Resumes,
    events.Stage,
    events.StepProgress,
    events.Reported,
    events.RowsAudited,
    events.WaitsForPeers,
    events.WaitsForStore,
    events.WorkersMeasured,
)


class Lines:
    """Prints lines after the seconds since the submission; of the progress only some, and the last."""

    def __init__(
        self,
        name: str,
        how_to_look: Callable[[], str] = str,
        submitted: datetime | None = None,
        printed_notes: Iterable[str] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Prints nothing yet. Times are counted from ``submitted``, by default now; ``clock`` tells Unix seconds.

        ``how_to_look`` tells how a person learns what the ranks of a silent job do. The submission has printed
        ``printed_notes``.
        """
        self._name, self._how_to_look, self._clock = name, how_to_look, clock
        self._last = clock()
        self._begun = submitted.timestamp() if submitted else self._last
        self._when = self._last  # of what is shown: a job that is attached to has told much before
        self._shown = 0.0  # of the line that was printed last: none behind it has an earlier time
        self._pause = SILENT_SECONDS
        self.state = ""
        """The state that was shown last."""
        self.notes = set(printed_notes)
        """The notes that were shown; none is shown twice."""
        self._size = ""
        self._past: Trace | None = None
        self._attempt: Attempt | None = None
        self._shown_keys: set[Hashable] = set()  # of what else is not shown twice
        self._audits: dict[str, events.RowsAudited] = {}  # in which each row was used once
        # The newest of each kind that is not shown yet.
        self._progress: dict[Hashable, events.StepProgress | events.Reported] = {}
        self._progressed = self._printed = -PROGRESS_SECONDS
        self._num_printed = 0

    def take(self, news: News) -> None:
        """Shows what a look has brought."""
        state, snapshot = news.state, news.snapshot
        if state in ENDED and not self.state:
            self._past = self._past or Trace()
        if self._past:  # it had ended before: what happened then is no news
            self._past.take(news)
            if news.is_last:
                self.state = state
                print(f"{self._name}: {shown(self._past.summary)}", flush=True)
            return
        for line in in_order(news.lines):
            self.show_line(line)
        if not snapshot.has_more:
            self._when = self._clock()
        if state not in (*ENDED, "Absent") and not news.is_last:  # an end is shown behind the last progress
            self.show_state(state, size_of(snapshot) if state == "Running" else "")
        self.show_diagnoses(news.diagnoses)
        if news.is_last:
            self.end(state)
        else:
            self.idle()

    def show_state(self, state: str, size: str = "") -> None:
        """Shows the state when it, or the ``size`` of the job in it, has changed."""
        if (state, size) != (self.state, self._size):
            self.state, self._size = state, size
            self.say(f"{self._name}: {state}{size and f', {size}'}")

    def show_diagnoses(self, diagnoses: Iterable[Diagnosis]) -> None:
        """Shows what hinders the job, or happened to a worker."""
        for diagnosis in diagnoses:
            if not diagnosis.worker_message or self._is_new((self._attempt, diagnosis.worker_message)):
                self.say(str(diagnosis))

    def show_line(self, line: AttemptLine) -> None:
        """Shows a line if it belongs in the display."""
        if line.event:
            self._when = seconds_of(line.event)
        if line.attempt is not self._attempt and not line.late:
            self._show_progress()
            self._attempt = line.attempt
        if line.late and isinstance(line.event, OF_THE_MOMENT):
            return
        match line.event:
            case None if line.text.startswith(RANK_0):
                self._show_printed(line.text.removeprefix(RANK_0))
            case (
                None
                | events.WorkerStarts()
                | events.WorkerJoins()
                | events.LogGap()
                | events.RankStops()
                | events.LostPeers()
                | events.WorkerEnds(exit_code=0)
            ):
                pass  # what only follows from an end is left to the logs
            case events.Alert(repeats=True):
                pass
            case events.Note(text=text) if text in self.notes:
                pass
            case events.WaitsForStore() | events.WaitsForPeers() if line.worker != 0:
                pass  # what one waits for, all wait for
            case events.StepProgress() as progress:
                self._progress[events.StepProgress] = progress
                if progress.step >= progress.num_steps:
                    self._show_progress()
            case events.Reported() as report:
                self._progress[frozenset(report.metrics)] = report
            case events.WorkerEnds() as end:
                if self._is_new_end(end):
                    self._show_progress()
                    # In a short line: the error that is raised for it has all.
                    first, _, rest = end.message.partition("\n")
                    cut = f"{first[:LONGEST_REASON]} ..." if rest or len(first) > LONGEST_REASON else first
                    self.say(replace(end, message=cut))
            case events.RanksRestart(attempt=number) as event:
                if self._is_new(("restart", number)):  # all workers say the same
                    self.say(event)
            case events.WorkersMeasured() as measured:
                if measured.slowness and self._is_new(("slow", measured.slow_part, measured.slow_worker)):
                    self.say(measured.slowness)
            case events.RowsAudited() as audit if is_exact(audit):
                self._audits[audit.what] = audit  # that nothing is wrong is told once, at the end
            case events.RowsAudited() as audit:
                self._show_progress()
                if self._is_new(str(audit)):
                    self.say(audit)
            case events.Event() as event:
                if isinstance(event, events.Note):
                    self.notes.add(event.text)
                step = getattr(event, "step", None)
                before = self._progress.get(events.StepProgress)
                is_due = self._is_progress_due
                if before and step is not None and before.step < step and not is_due:
                    del self._progress[events.StepProgress]  # it would come behind what is newer
                if step is not None or is_due or isinstance(event, events.Published):
                    self._show_progress()
                self.say(event)

    def idle(self) -> None:
        """Shows what is due after each look."""
        now = self._clock()
        if self._is_progress_due:
            self._show_progress()
        if now - self._printed >= PROGRESS_SECONDS:
            self._show_unprinted()
        if now - self._last >= self._pause and self.state:
            how = self._how_to_look() if self.state == "Running" else ""
            words = f"still {self.state}, nothing new for {now - self._last:.0f} s{how and f'; {how}'}"
            self._print(now, words)
            self._pause *= 2

    def finish(self, failure: JobFailed | None = None) -> None:
        """Prints, as an error, why the job has no result."""
        if failure:
            print(shown(str(failure)), file=sys.stderr, flush=True)

    def close(self) -> None:
        """Does nothing: its lines stand."""

    def end(self, state: str) -> None:
        """Shows the last progress and the last state; a job that is gone has none."""
        self._show_unprinted()
        self._show_progress()
        for words in audits_in_words(self._audits.values()):
            self.say(words.removeprefix("✓ "))
        if state != "Absent":
            self.show_state(state)

    def say(self, what: str | events.Event) -> None:
        """Prints something behind the seconds from the submission to it."""
        self._last, self._pause = self._clock(), SILENT_SECONDS
        self._print(seconds_of(what) if isinstance(what, events.Event) else self._when, str(what))

    def _print(self, when: float, words: str) -> None:
        self._shown = max(self._shown, when)  # a progress may have waited, and the clocks of workers differ
        print(f"{max(0.0, self._shown - self._begun):6.1f} s  {shown(words)}", flush=True)

    @property
    def _is_progress_due(self) -> bool:
        return self._clock() - self._progressed >= PROGRESS_SECONDS

    def _show_progress(self) -> None:
        waiting, self._progress = self._progress, {}
        for progress in sorted(waiting.values(), key=seconds_of):
            self._progressed = self._clock()
            self.say(progress)

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
            self.say(f"{counted(left_out, 'further line')} of rank 0: see the logs")

    def _is_new_end(self, end: events.WorkerEnds) -> bool:
        """Returns whether neither the words of this end nor an end with the same root were shown in the attempt.

        Where a fault of the run comes to every rank, each worker ends with the same words.
        """
        root = end.worker if end.follows is None else end.follows
        is_new_root = self._is_new((self._attempt, root))
        return self._is_new((self._attempt, OF_ONE_RANK.sub("", end.message))) and is_new_root

    def _is_new(self, key: Hashable) -> bool:
        """Returns whether this is the first call with ``key``."""
        is_new = key not in self._shown_keys
        self._shown_keys.add(key)
        return is_new


def in_order(lines: Iterable[AttemptLine]) -> list[AttemptLine]:
    """Returns the lines of one look, which come worker by worker, in the order of their times.

    Those of one worker stay in their order. A printed line has the time of the event before it.
    """
    times: dict[int, float] = {}
    timed = []
    for line in lines:
        before = times.get(line.worker, 0.0)
        times[line.worker] = max(before, seconds_of(line.event)) if line.event else before
        timed.append((times[line.worker], line))
    return [line for _, line in sorted(timed, key=lambda each: each[0])]


def size_of(snapshot: Snapshot) -> str:
    """Returns how many of its workers a job has, in words; empty where it has all, or that is not known."""
    expected = snapshot.status.workers if snapshot.status else None
    num_running = len(snapshot.running)
    return f"{num_running} of {counted(expected, 'worker')}" if expected and num_running < expected else ""
