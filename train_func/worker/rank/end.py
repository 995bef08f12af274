"""How a rank ended: what it left behind for its supervisor, one small JSON file, and what the supervisor saw."""

import contextlib
import signal
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from train_func.codec import Record
from train_func.errors import Cause, TrainFuncError
from train_func.events import now
from train_func.exits import CODE, DONE, STOPPED, Exit, exit_of, is_lost_peer
from train_func.records import Failure, RankRecord
from train_func.worker import masks
from train_func.worker.rank.stop_flag import StopSignal

LONGEST_MESSAGE = 4_000  # characters; a record stays readable when an exception carries a whole tensor
LONGEST_TRACEBACK = 60_000
SOURCE = "source.py"  # what its frames name


@dataclass(frozen=True)
class Outcome(Record):
    """How a rank ended by itself.

    ``follows``: it ended only because a peer had gone, or was told to stop. ``separate``: it had torch and never
    formed a process group with all the others.
    """

    exit_code: int
    cause: Cause | None
    session: bool
    follows: bool
    failure: Failure | None
    separate: bool = False
    returned: Mapping[str, Any] = field(default_factory=dict)
    """The result that the return value of rank 0 stands for."""
    left_out: tuple[str, ...] = ()
    """Parts of that value that are no JSON."""
    left_steps: str = ""
    """After how many steps it has left a loop over session.steps before its end."""
    notes: tuple[str, ...] = ()
    """Notes that the result has."""

    def write(self, path: Path) -> None:
        """Writes the file if it can; on a full disk the exit code alone tells how the rank ended."""
        with contextlib.suppress(OSError):
            unfinished = path.with_suffix(".unfinished")
            unfinished.write_bytes(masks.mask(self).to_json())
            unfinished.replace(path)
        with contextlib.suppress(OSError):
            running(path).unlink()

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Returns None if the rank had no time to write one."""
        try:
            return cls.from_json(path.read_bytes(), str(path))
        except FileNotFoundError:
            return None


@dataclass(frozen=True)
class RankEnd:
    """How a rank's process ended.

    ``exit_code``: negative for a signal, None when the process could not be buried. ``was_signalled``: the supervisor
    had told it to stop before. ``order``: in which the supervisor noticed. ``unfinished``: its process ended before it
    had come to the end of train_func. ``stacks``: where it was when its supervisor last asked.
    ``left``: after how many steps break or return has left a loop over them.
    """

    rank: int
    exit_code: int | None
    outcome: Outcome | None
    was_signalled: bool
    order: int
    unfinished: bool = False
    stacks: str = ""
    left: str = ""

    @property
    def failed(self) -> bool:
        return (self.exit_code != 0 or self.unfinished) and not self.was_signalled

    @property
    def has_own_fault(self) -> bool:
        """Whether the function has failed, as its rank has written down before its process went."""
        return self.outcome is not None and self.outcome.exit_code not in (DONE, STOPPED) and not self.follows

    @property
    def left_steps(self) -> str:
        if self.outcome:
            return self.outcome.left_steps
        return self.left if self.exit_code == -signal.SIGABRT else ""  # gloo aborts where two exchanges do not match

    @property
    def went_on(self) -> bool:
        """Whether it failed, and had left no loop before: others that have may be why."""
        return self.failed and not self.left_steps

    @property
    def separate(self) -> bool:
        return self.outcome is not None and self.outcome.separate

    @property
    def follows(self) -> bool:
        return self.outcome is not None and self.outcome.follows


def records_of(ends: Sequence[RankEnd]) -> tuple[RankRecord, ...]:
    """Returns one record per rank; where a rank failed by itself, without the errors of those that followed."""
    is_left = any(end.left_steps for end in ends) and any(end.went_on for end in ends)
    rooted = is_left or any(end.failed and not end.follows for end in ends)
    return tuple(
        RankRecord(
            rank=end.rank,
            exit_code=end.exit_code,
            error=end.outcome.failure if end.outcome and not (end.was_signalled or (rooted and end.follows)) else None,
            separate=end.separate,
            stacks=_cut(end.stacks, LONGEST_TRACEBACK),
        )
        for end in sorted(ends, key=lambda end: end.rank)
    )


def running(path: Path) -> Path:
    """The file beside an outcome that the supervisor makes, and that is there until the rank has come to its end."""
    return path.with_suffix(".running")


def left(path: Path) -> Path:
    """The file beside an outcome that says after how many steps break or return has left a loop over the steps."""
    return path.with_suffix(".left")


def of_error(error: BaseException, *, session: bool, has_peers: bool = True) -> Outcome:
    """The outcome of a rank that ``error`` ended, before or after it opened a Session.

    ``has_peers``: it was not started alone.
    """
    ended = exit_of_rank(error, has_peers=has_peers)
    text, missing_file = str(error), ""
    if isinstance(error, SystemExit):
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
    return Outcome(ended.code, ended.cause, session, follows, failure)


def exit_of_rank(error: BaseException, *, has_peers: bool = True) -> Exit:
    """Like ``exit_of``; a number from 1 to 255 given to sys.exit is the exit code itself."""
    if not isinstance(error, SystemExit):
        return exit_of(error, has_peers=has_peers)
    if isinstance(error.code, int) and 1 <= error.code <= 255:
        return Exit(int(error.code), "code")
    return Exit(1 if isinstance(error.code, str) else CODE, "code")


def _cut(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
