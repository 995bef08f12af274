"""The end of a rank: what its function has done, the outcome for its supervisor, and the view of the supervisor.

A rank writes its outcome, one small JSON file, as its last act. Native code may end its process before that, so two
more files say whether the function had ended, and whether break or return had left a loop over steps.
"""

import contextlib
import os
import signal
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any, Self

from train_func.errors import Cause, TrainFuncError
from train_func.wire.codec import Record
from train_func.wire.events import now
from train_func.wire.exits import CODE, DONE, STOPPED, cause_of, exit_of, is_lost_peer
from train_func.wire.layout import SOURCE
from train_func.wire.records import Failure, RankRecord
from train_func.worker import masks
from train_func.worker.rank import reporting
from train_func.worker.rank.stop_flag import StopSignal

LONGEST_MESSAGE = 4_000  # characters; a record stays readable when an exception carries a whole tensor
LONGEST_TRACEBACK = 60_000


@dataclass
class Loop:
    """A loop over ``session.steps`` that has not ended, and may have been left."""

    num_steps: int
    """Steps of the plan."""
    num_done: int
    left_at: tuple[CodeType, int] | None = None
    """The code and the line that left it."""

    def __str__(self) -> str:
        return f"after {self.num_done} of {self.num_steps} steps"

    @property
    def is_done(self) -> bool:
        """Returns whether all its steps are done; it was then left in the body of the last one."""
        return self.num_done == self.num_steps

    def is_left_by(self, error: BaseException) -> bool:
        """Returns whether ``error``, or an error that caused it, has ended the loop."""
        current: BaseException | None = error
        while current is not None:
            passed = {(frame.f_code, line) for frame, line in traceback.walk_tb(current.__traceback__)}
            if self.left_at is None or self.left_at in passed:
                return True
            current = current.__cause__ or current.__context__
        return False


@dataclass
class Sessions:
    """The Sessions of one process."""

    opened: bool = False
    published: bool = False
    published_in_loop: set[str] = field(default_factory=set)
    """What was published in the body of a loop over steps: "a model", "files"."""
    lacks: set[str] = field(default_factory=set)
    """What an earlier attempt had published in that body, behind which this one goes on, and this one has not yet."""
    num_trainings: int = 0
    """Trainings that have begun."""
    trained: bool = False
    """Whether a training of a Trainer has ended."""
    loops: list[Loop] = field(default_factory=list)
    """Loops over steps that have begun and not ended."""
    notes: list[str] = field(default_factory=list)
    """Notes on the result."""

    def note_published(self, *, is_model: bool) -> None:
        """Records that something was published; a model replaces the one before it, wherever it is published."""
        self.published, kind = True, "a model" if is_model else "files"
        in_body = any(not loop.left_at for loop in self.loops)
        if in_body:
            self.published_in_loop.add(kind)
        if in_body or is_model:
            self.lacks.discard(kind)

    def tell_left(self, loop: Loop) -> None:
        """Records that break or return left a loop, in case native code ends the process before it can report that."""
        if os.environ.get("WORLD_SIZE") == "1":  # no other rank waits for it
            return
        with contextlib.suppress(KeyError, OSError):  # no supervisor
            left_file(Path(os.environ["TRAIN_FUNC_OUTCOME_FILE"])).write_text(f"{loop}")

    def left_steps(self, error: BaseException | None = None) -> str:
        """Returns in words after how many steps the function left a loop early; ``error``: the error that ended it."""
        return next((f"{loop}" for loop in self.loops if error is None or not loop.is_left_by(error)), "")

    def may_leave(self) -> None:
        """Records that an exit with code 0 counts from now on as the end of the function.

        Some functions exit so after their last step, because a library of theirs aborts at the end of Python.
        """
        with contextlib.suppress(KeyError, OSError):  # no supervisor, or it was said before
            path = Path(os.environ["TRAIN_FUNC_OUTCOME_FILE"])
            running_file(path).rename(_leaving_file(path))


here = Sessions()


@dataclass(frozen=True)
class Outcome(Record):
    """The end of a rank in its own words.

    ``follows``: whether it ended only because a peer had gone, or because it had to stop. ``separate``: whether it had
    torch and never formed a process group with all the others.
    """

    exit_code: int
    cause: Cause | None
    follows: bool
    failure: Failure | None
    separate: bool = False
    returned: Mapping[str, Any] = field(default_factory=dict)
    """The result, from the return value of rank 0."""
    left_out: tuple[str, ...] = ()
    """Parts of the return value that are no JSON."""
    left_steps: str = ""
    """After how many steps it has left a loop over session.steps before its end, in words."""
    notes: tuple[str, ...] = ()
    """Notes on the result."""

    def write(self, path: Path) -> None:
        """Writes the file. On a full disk only the exit code remains, and a note says so."""
        try:
            unfinished = path.with_suffix(".unfinished")
            unfinished.write_bytes(masks.mask(self).to_json())
            unfinished.replace(path)
        except OSError as error:
            lost = "only this log has its error" if self.exit_code else "the function's result is lost"
            reporting.note(f"the end of this rank could not be recorded, so {lost}: {error}")
            for mark in (running_file(path), _leaving_file(path)):
                with contextlib.suppress(OSError):
                    mark.rename(_lost_file(path))  # which needs no room
        with contextlib.suppress(OSError):
            running_file(path).unlink()


@dataclass(frozen=True)
class RankEnd:
    """The end of a rank's process.

    ``exit_code``: negative for a signal, None if the process could not be reaped. ``was_signalled``: whether the
    supervisor had told it to stop. ``order``: position in the order in which the supervisor noticed the ends.
    ``unfinished``: whether its process ended before train_func. ``stacks``: its stacks when the supervisor last asked.
    ``left_steps``: after how many steps it has left a loop over them.
    """

    rank: int
    exit_code: int | None
    outcome: Outcome | None
    was_signalled: bool
    order: int
    unfinished: bool = False
    stacks: str = ""
    left_steps: str = ""

    @classmethod
    def read(
        cls, path: Path, *, rank: int, exit_code: int | None, was_signalled: bool, order: int, stacks: str
    ) -> Self:
        """Returns the end of a rank; ``path``: the file of its outcome, which may be absent."""
        outcome, left_steps = None, ""
        with contextlib.suppress(FileNotFoundError):  # it had no time to write one
            outcome = Outcome.from_json(path.read_bytes(), str(path))
            left_steps = outcome.left_steps
        unfinished = running_file(path).exists()
        if outcome is None and exit_code and exit_code > 0 and _lost_file(path).exists():
            cause = cause_of(exit_code)
            outcome = Outcome(exit_code, cause, follows=cause == "peer", failure=None)
        if outcome is None and exit_code == -signal.SIGABRT:  # gloo aborts where two exchanges do not match
            with contextlib.suppress(OSError):
                left_steps = left_file(path).read_text()
        return cls(rank, exit_code, outcome, was_signalled, order, unfinished, stacks, left_steps)

    @property
    def failed(self) -> bool:
        return (self.exit_code != 0 or self.unfinished) and not self.was_signalled

    @property
    def has_own_fault(self) -> bool:
        """Returns whether the rank has recorded a failure of its function before its process ended."""
        return self.outcome is not None and self.outcome.exit_code not in (DONE, STOPPED) and not self.follows

    @property
    def went_on(self) -> bool:
        """Returns whether it failed without having left a loop; another rank that has left one may be the cause."""
        return self.failed and not self.left_steps

    @property
    def follows(self) -> bool:
        return self.outcome is not None and self.outcome.follows


def records_of(ends: Sequence[RankEnd]) -> tuple[RankRecord, ...]:
    """Returns one record per rank; if a rank failed by itself, the errors of ranks that followed are left out."""
    is_left = any(end.left_steps for end in ends) and any(end.went_on for end in ends)
    rooted = is_left or any(end.failed and not end.follows for end in ends)
    return tuple(
        RankRecord(
            rank=end.rank,
            exit_code=end.exit_code,
            error=end.outcome.failure if end.outcome and not (end.was_signalled or (rooted and end.follows)) else None,
            separate=end.outcome is not None and end.outcome.separate,
            stacks=_cut(end.stacks, LONGEST_TRACEBACK),
            stopped_at=end.outcome.failure.traceback
            if end.was_signalled and end.outcome and end.outcome.failure
            else "",
        )
        for end in sorted(ends, key=lambda end: end.rank)
    )


def running_file(path: Path) -> Path:
    """Returns the path of the file that the supervisor makes, and that exists until the function has ended."""
    return path.with_suffix(".running")


def _leaving_file(path: Path) -> Path:
    """Returns its path once any exit with code 0 is the end of the function."""
    return path.with_suffix(".leaving")


def _lost_file(path: Path) -> Path:
    """Returns its path once the outcome could not be written."""
    return path.with_suffix(".lost")


def left_file(path: Path) -> Path:
    """Returns the path of the file that says after how many steps break or return has left a loop over the steps."""
    return path.with_suffix(".left")


def of_error(error: BaseException, *, has_peers: bool = True) -> Outcome:
    """Returns the outcome of a rank that ``error`` ended. ``has_peers``: whether there are other ranks.

    A number from 1 to 255 given to sys.exit is the exit code itself.
    """
    ended, text, missing_file = exit_of(error, has_peers=has_peers), str(error), ""
    code, cause = ended.code, ended.cause
    if isinstance(error, SystemExit):
        code, cause = 1 if isinstance(error.code, str) else CODE, "code"
        if isinstance(error.code, int) and 1 <= error.code <= 255:
            code = int(error.code)
        codes = (frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__))
        function = next((code.co_name for code in codes if Path(code.co_filename).name == SOURCE), "the function")
        text = f"{function} called sys.exit({error.code!r})"
    if isinstance(error, FileNotFoundError) and isinstance(error.filename, str):
        missing_file = "" if Path(error.filename).is_absolute() else error.filename
    failure = Failure(
        type=type(error).__name__,
        message=_cut(text, LONGEST_MESSAGE),
        traceback=_cut("".join(traceback.format_exception(error)), LONGEST_TRACEBACK),
        time=now(),
        missing_file=missing_file,
        checkpoints_of=error.checkpoints_of if isinstance(error, TrainFuncError) else "",
    )
    follows = is_lost_peer(error, has_peers=has_peers) or (isinstance(error, StopSignal) and error.follows)
    return Outcome(code, cause, follows, failure)


def _cut(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
