"""What a display of a running job prints: of every line of its workers whether, when and in which words."""

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from train_func.client.diagnose import Diagnosis
from train_func.client.logs import Attempt, AttemptLine
from train_func.client.waiting_notice import WaitingNotice
from train_func.events import (
    OF_RANK,
    AttemptStarts,
    CheckpointSaved,
    Evaluated,
    Event,
    LogGap,
    LostPeers,
    Published,
    RanksRestart,
    RankStops,
    Reported,
    RowsAudited,
    Stage,
    StepProgress,
    WaitsForPeers,
    WaitsForStore,
    WorkerEnds,
    WorkerStarts,
)
from train_func.exits import retryable
from train_func.text import counted, shown

PROGRESS_SECONDS = 5.0  # between two progress lines
MOST_PRINTED = 50  # lines of rank 0 in that time
LONG_SECONDS = 30.0  # of silence while the job runs, after which it is said how to look what its ranks do
STARTING = "the workers start and meet"
RANK_0 = OF_RANK.format(0)
OF_ONE_RANK = re.compile(r"^rank \d+: ")  # before what the rank said
# These tell nothing any more when a later attempt has begun.
OF_THE_MOMENT = (AttemptStarts, Stage, StepProgress, Reported, RowsAudited, WaitsForPeers, WaitsForStore)
LONGEST_REASON = 200  # characters of a worker's last words; the error of result() has all
LOADING = "the group is complete; its ranks load their libraries"


class Display:
    """Prints lines after the seconds since the watching began; of the progress only some, and the last."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, how_to_look: Callable[[], str] = str) -> None:
        """``how_to_look``: tells, in words, how a person learns what the ranks of a silent job do."""
        self._how_to_look, self._has_told_how = how_to_look, False
        self._clock = clock
        self._begun = clock()
        self._progress = -PROGRESS_SECONDS
        self._printing, self._num_printed = -PROGRESS_SECONDS, 0  # since when so many lines of rank 0 were counted
        self._held: StepProgress | Reported | None = None  # progress that came too soon after the one before it
        self._state = ""
        self._shown: set[str] = set()  # first lines of what hinders the job
        self._passed: list[int] = []
        self._attempt: Attempt | None = None
        self._ends: set[object] = set()  # ends of workers of this attempt that were shown
        self._final_ends: set[object] = set()  # of this attempt, that were shown: code, cause, and what was said
        self._stopped: RankStops | None = None  # of rank 0; shown when it is known why
        self._lost: list[LostPeers] = []  # shown after the end that they followed from
        self._restarted: set[int] = set()  # attempts whose beginning in the pods of the one before was shown
        self._audits: set[str] = set()  # that were shown: of the same rows it is mostly the same
        self._next = STARTING  # what is shown while no event comes
        self._last = ""
        self._notice = WaitingNotice(clock)

    @property
    def shown(self) -> str:
        """The state that was shown last; what was submitted is at least Created."""
        return self._state or "Created"

    def state(self, name: str, state: str) -> None:
        """Shows the state when it has changed."""
        if state != self._state:
            self._state = state
            self._say(f"{name}: {state}")

    def diagnoses(self, found: list[Diagnosis]) -> None:
        """Shows what hinders the job, or happened to a worker."""
        for diagnosis in found:
            if diagnosis.permanent and diagnosis.headline in self._shown:
                self._say(f"waiting does not help: {diagnosis.remedy}")
            elif not (diagnosis.said and self._are_known({diagnosis.said})):
                self._shown.add(diagnosis.headline)
                self._say(str(diagnosis))

    def say_of_ended(self, name: str, state: str, last: Iterable[Event], attach: str, amiss: str = "") -> None:
        """Shows in a few lines a job that had ended before; ``last``: what its workers told last of each kind."""
        for event in last:
            self._say(str(event))
        self.state(name, state)
        self._say(f"{name}: it had ended before; {attach}.logs() shows all lines, .result() what came of it")
        if amiss:
            self._say(f"{name}: {amiss}")

    def finish(self, name: str, state: str, amiss: str = "") -> None:
        """Shows the last progress, the last state, and the warning about a job that has succeeded."""
        self._tell_earlier()
        self._tell_unprinted()
        self._tell_stopped(None)
        self._tell_lost()
        self._tell_held()
        self.state(name, state)
        if amiss:
            self._say(f"{name}: {amiss}")

    def pass_over(self, attempt: Attempt) -> None:
        """Counts an attempt whose lines are not shown here."""
        if attempt.number not in self._passed:
            self._passed.append(attempt.number)

    def tell(self, line: AttemptLine) -> None:
        """Shows a line if it belongs in the display."""
        if line.attempt is not self._attempt and not line.late:
            self._begin(line.attempt)
        if line.late and isinstance(line.event, OF_THE_MOMENT):
            return
        if line.worker == 0 and isinstance(line.event, (WorkerEnds, RanksRestart)):
            self._tell_stopped(line.event.follows)
        match line.event:
            case None if line.text.startswith(RANK_0):
                self._tell_printed(line.text.removeprefix(RANK_0))
                return
            case None | WorkerStarts() | LogGap() | WorkerEnds(exit_code=0):
                return
            case WaitsForStore(purpose=""):
                return  # the monitor tells which workers do
            case WaitsForStore() | WaitsForPeers() if line.worker != 0:
                return  # what one waits for, all wait for
            case RanksRestart(attempt=number) if number in self._restarted:
                return  # all workers say the same
            case WorkerEnds() as end if self._was_shown(end):
                return
            case RowsAudited() as audit if str(audit) in self._audits:
                return
            case RankStops() as stops:
                self._stopped = stops if line.worker == 0 and stops.rank == 0 else self._stopped
                return
            case LostPeers() as lost:
                self._lost.append(lost)
                if self._ends:
                    self._tell_lost()
                return
            case StepProgress() | Reported() as progress:
                self._tell_progress(progress)
                return
        self._tell_event(line.event)

    def _tell_event(self, event: Event) -> None:
        self._next = LOADING if isinstance(event, AttemptStarts) else ""
        match event:
            case WorkerEnds() | RowsAudited() | Published():
                self._tell_held()
            case CheckpointSaved(step=step) | Evaluated(step=step) if self._is_held_of_step_before(step):
                self._held = None  # it would come behind what is newer
            case Evaluated():
                self._tell_held()
        match event:
            case RanksRestart(attempt=number):
                self._restarted.add(number)
            case RowsAudited():
                self._audits.add(str(event))
        self._say(_brief(event) if isinstance(event, WorkerEnds) else str(event))
        if isinstance(event, (WorkerEnds, RanksRestart)):
            self._tell_lost()

    def _tell_lost(self) -> None:
        for lost in self._lost:
            if f"rank {lost.rank} {lost}" not in self._ends:
                self._say(f"rank {lost.rank} lost its peers")  # the words of its library tell nothing of the cause
        self._lost = []

    def _tell_stopped(self, follows: int | None) -> None:
        """That a signal has ended rank 0, and the end of which worker that followed from."""
        if stopped := self._stopped:
            why = "" if follows in (None, 0) else f", because worker {follows} had ended"
            self._say(f"rank 0 {stopped}{why}")
        self._stopped = None

    def _is_held_of_step_before(self, step: int) -> bool:
        """Of the training's own steps: those of a report are numbered by the function."""
        return isinstance(self._held, StepProgress) and self._held.step < step

    def _tell_held(self) -> None:
        held, self._held = self._held, None
        if held:
            self._say(str(held))

    def _tell_printed(self, text: str) -> None:
        """A line of rank 0; of many at once only the first."""
        now = self._clock()
        if now - self._printing >= PROGRESS_SECONDS:
            self._tell_unprinted()
            self._printing = now
        self._num_printed += 1
        if self._num_printed <= MOST_PRINTED:
            self._next = ""
            self._say(text)

    def _tell_unprinted(self) -> None:
        if (left_out := self._num_printed - MOST_PRINTED) > 0:
            self._say(f"{counted(left_out, 'further line')} of rank 0: logs() shows them")
        self._num_printed = 0

    def idle(self) -> None:
        """Shows what is due when no event has come for a while."""
        if self._num_printed > MOST_PRINTED and self._clock() - self._printing >= PROGRESS_SECONDS:
            self._tell_unprinted()
        if self._held and self._clock() - self._progress >= PROGRESS_SECONDS:
            self._tell_progress(self._held)
        if self._next and self._state in ("Created", "Running", "Restarting"):
            self._say(self._next)
            self._next = ""
        elif self._state and (words := self._notice.due(self._state)):
            if self._state == "Running" and self._notice.silence > LONG_SECONDS and not self._has_told_how:
                self._has_told_how = bool(how := self._how_to_look())
                words += how and f"; {how}"
            print(f"{self._clock() - self._begun:6.1f} s  {words}", flush=True)

    def _begin(self, attempt: Attempt) -> None:
        self._tell_earlier()
        self._tell_stopped(None)
        self._tell_held()
        self._attempt, self._ends, self._final_ends = attempt, set(), set()
        self._next = "" if self._last == STARTING else STARTING

    def _tell_earlier(self) -> None:
        if self._passed:
            earlier = ", ".join(map(str, self._passed))
            self._say(f"earlier submissions had the attempts {earlier}: logs() shows them too")
            self._passed = []

    def _was_shown(self, end: WorkerEnds) -> bool:
        """Whether an end was shown that this one repeats, or that it, or both, followed from.

        Where a fault of the run comes to every rank, each worker ends with the same code, cause and words.
        """
        if not retryable(end.exit_code):
            final = end.exit_code, end.cause, OF_ONE_RANK.sub("", end.message)
            if final in self._final_ends:
                return True
            self._final_ends.add(final)
        return self._are_known({end.worker if end.follows is None else end.follows, end.message})

    def _are_known(self, end: set[object]) -> bool:
        """Whether one of these, the worker that ended and what it said, was shown; from now on all of them were."""
        known = not self._ends.isdisjoint(end)
        self._ends |= end
        return known

    def _tell_progress(self, progress: StepProgress | Reported) -> None:
        now = self._clock()
        is_last = isinstance(progress, StepProgress) and progress.step >= progress.num_steps
        if now - self._progress < PROGRESS_SECONDS and not is_last:
            self._held = progress
            return
        self._held = None
        self._progress = now
        self._say(str(progress))

    def _say(self, text: str) -> None:
        self._last, self._has_told_how = text, False
        self._notice.heard()
        print(f"{self._clock() - self._begun:6.1f} s  {shown(text)}", flush=True)


def _brief(end: WorkerEnds) -> str:
    """The end of a worker in a short line: the error that is raised for it has all."""
    first, _, others = end.message.partition("\n")
    cut = f"{first[:LONGEST_REASON]} ..." if others or len(first) > LONGEST_REASON else first
    return str(replace(end, message=cut))
