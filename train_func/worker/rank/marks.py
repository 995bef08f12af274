"""Progress marks: the phase of a rank and its time in each phase, in memory shared with its supervisor. Loads no torch.

A mark costs about a microsecond. A process without a supervisor sets no marks.
"""

import contextlib
import mmap
import os
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

VARIABLE = "TRAIN_FUNC_PROGRESS"


class Phase(IntEnum):
    """The phase of a rank; a lack of progress means something only in phases with regular progress."""

    OUTSIDE = 0
    SAVING = 1
    STEP = 2
    EXCHANGE = 3
    """In a collective: it may wait for other ranks."""
    BETWEEN = 4
    """In callbacks, between two steps."""
    EVALUATION = 5
    OWN = 6
    """In the body of a loop of the user's own: it may wait for other ranks anywhere."""
    LOADING = 7
    """In the loading of data for the next step."""

    @property
    def is_watched(self) -> bool:
        """Returns whether a rank in this phase makes progress every few seconds."""
        return self >= Phase.STEP

    @property
    def words(self) -> str:
        """Returns words for messages, to follow "in"."""
        return _WORDS[self]


_WORDS = {
    Phase.OUTSIDE: "code outside of the steps",
    Phase.SAVING: "saving a checkpoint",
    Phase.STEP: "a step",
    Phase.EXCHANGE: "an exchange with the other ranks",
    Phase.BETWEEN: "callbacks between two steps",
    Phase.EVALUATION: "an evaluation",
    Phase.OWN: "a step of session.steps",
    Phase.LOADING: "the loading of data between two steps",
}
# The number of the mark first and last: a reader sees both or reads again.
_PLAIN = struct.Struct(f"<QdBqQQ{len(Phase)}dQ")


@dataclass(frozen=True, slots=True)
class Mark:
    """The last sign of progress of a rank."""

    number: int = 0
    """Number of marks so far; 0 if the rank has not begun."""
    time: float = 0.0
    """Monotonic seconds, which are the same for all processes of a machine."""
    phase: Phase = Phase.OUTSIDE
    step: int = 0
    """Steps of the training that are done, including those of earlier attempts."""
    num_steps: int = 0
    """Steps that this process has done since the training began."""
    num_batches: int = 0
    """Batches that this process has evaluated since then."""
    seconds: tuple[float, ...] = (0.0,) * len(Phase)
    """Seconds in each phase, by its number, from the first mark to this one."""

    @property
    def is_watched(self) -> bool:
        """Returns whether the rank has to make progress; the first step and the first batch may compile."""
        return self.phase.is_watched and (self.num_batches if self.phase is Phase.EVALUATION else self.num_steps) > 0

    def seconds_at(self, now: float) -> tuple[float, ...]:
        """Returns the seconds spent in each phase up to monotonic second ``now``."""
        seconds = [*self.seconds]
        seconds[self.phase] += max(0.0, now - self.time)
        return tuple(seconds)


class SharedMark:
    """The memory of one rank's marks; its supervisor makes it."""

    def __init__(self) -> None:
        self._file = os.memfd_create("progress")
        os.ftruncate(self._file, _PLAIN.size)
        self.path = f"/proc/{os.getpid()}/fd/{self._file}"
        """Value of VARIABLE in the rank's environment."""
        self._last = Mark()

    def read(self) -> Mark:
        """Returns the last mark; while one is being written, the one that was read before.

        Writing begins with zeros: https://github.com/python/cpython/blob/v3.11.0/Modules/_struct.c#L2227
        """
        number, *fields, again = _PLAIN.unpack(os.pread(self._file, _PLAIN.size, 0))
        if number == again > 0:
            when, phase, step, num_steps, num_batches, *seconds = fields
            self._last = Mark(number, when, Phase(phase), step, num_steps, num_batches, tuple(seconds))
        return self._last

    def close(self) -> None:
        """Frees the memory, unless a rank still has it."""
        os.close(self._file)


class _Marker:
    """This process's own marks; fields as in Mark."""

    def __init__(self) -> None:
        self.memory: mmap.mmap | None = None
        self.thread = 0
        self.number = self.step = self.num_steps = self.num_batches = 0
        self.phase = Phase.OUTSIDE
        self.time = 0.0
        self.seconds = [0.0] * len(Phase)

    def write(self, phase: Phase) -> None:
        if self.memory is None:
            return
        now = time.monotonic()
        self.seconds[self.phase] += now - self.time  # the phase that ends, or gets on
        self.time, self.phase = now, phase
        self.thread = threading.get_ident()
        self.number = number = self.number + 1
        counts = self.step, self.num_steps, self.num_batches
        _PLAIN.pack_into(self.memory, 0, number, now, phase, *counts, *self.seconds, number)

    def forget(self) -> None:
        """Ends the marks in a process that the rank has forked, because it does not do the rank's work."""
        self.memory = None


_marker = _Marker()
mark = _marker.write
"""Says that this process has come to a phase, or gets on within it."""


def open_memory(path: str) -> None:
    """Makes this process mark its progress in the memory at ``path`` from now on. Raises OSError."""
    file = os.open(path, os.O_RDWR)
    try:
        _marker.memory = mmap.mmap(file, _PLAIN.size)
    finally:
        os.close(file)
    os.register_at_fork(after_in_child=_marker.forget)
    _marker.time = time.monotonic()
    mark(Phase.OUTSIDE)


def begin(step: int = 0) -> None:
    """Marks that a training begins after ``step``; its first steps compile, load and allocate."""
    _marker.step = step
    _marker.num_steps = _marker.num_batches = 0
    mark(Phase.OUTSIDE)


def step_done(step: int) -> None:
    """Marks that step number ``step``, from 1, is done."""
    _marker.step = step
    _marker.num_steps += 1
    mark(Phase.BETWEEN)


def batch_evaluated() -> None:
    """Marks that a batch of an evaluation is done."""
    _marker.num_batches += 1
    mark(_marker.phase)


def touch() -> None:
    """Marks that the last phase goes on; does nothing in threads other than the training one."""
    if threading.get_ident() == _marker.thread:
        mark(_marker.phase)


@contextlib.contextmanager
def within(phase: Phase) -> Iterator[None]:
    """Marks ``phase`` for the block, and then the phase before it again."""
    before = _marker.phase
    mark(phase)
    try:
        yield
    finally:
        mark(before)


@contextlib.contextmanager
def exchange() -> Iterator[None]:
    """Marks EXCHANGE while this process may wait for others; does nothing within a phase that is not watched."""
    if not _marker.phase.is_watched:
        yield
        return
    with within(Phase.EXCHANGE):
        yield


class Loading:
    """Marks LOADING between two steps. It is a class, because a generator would cost two more marks per step."""

    def __enter__(self) -> None:
        if _marker.phase is Phase.BETWEEN:
            mark(Phase.LOADING)

    def __exit__(self, *raised: object) -> None:
        if _marker.phase is Phase.LOADING:
            mark(Phase.BETWEEN)


loading = Loading()
