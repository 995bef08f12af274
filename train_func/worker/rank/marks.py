"""Progress marks: where a rank is, and how its time is spent, in a few bytes that its supervisor reads. Loads no torch.

A mark costs about a microsecond. A process to which no supervisor gave such memory marks nothing.
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
    """What a rank is in. Where progress is not regular, nothing follows from its absence."""

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
        """Returns whether a rank in it makes progress every few seconds."""
        return self >= Phase.STEP

    @property
    def words(self) -> str:
        """Words for messages, to follow "in"."""
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
    """Number of marks so far; 0: the rank has not begun."""
    time: float = 0.0
    """Monotonic seconds, which all processes of a machine count alike."""
    phase: Phase = Phase.OUTSIDE
    step: int = 0
    """Steps done of the training, those of earlier attempts included."""
    num_steps: int = 0
    """Done by this process since the training began."""
    num_batches: int = 0
    """Evaluated by this process since then."""
    seconds: tuple[float, ...] = (0.0,) * len(Phase)
    """Spent in each phase, by its number, from the first mark to this one."""

    @property
    def is_watched(self) -> bool:
        """Returns whether the rank has to make progress: the first step, and the first batch, may compile."""
        return self.phase.is_watched and (self.num_batches if self.phase is Phase.EVALUATION else self.num_steps) > 0

    def seconds_at(self, now: float) -> tuple[float, ...]:
        """Returns the seconds spent in each phase up to monotonic second ``now``."""
        seconds = [*self.seconds]
        seconds[self.phase] += max(0.0, now - self.time)
        return tuple(seconds)


class SharedMark:
    """The memory of one rank's marks, made by its supervisor."""

    def __init__(self) -> None:
        self._file = os.memfd_create("progress")
        os.ftruncate(self._file, _PLAIN.size)
        self.path = f"/proc/{os.getpid()}/fd/{self._file}"
        """For VARIABLE in the rank's environment."""
        self._last = Mark()

    def read(self) -> Mark:
        """The last mark; while one is being written, the one before that was read.

        Writing begins with zeros: https://github.com/python/cpython/blob/v3.11.0/Modules/_struct.c#L2227
        """
        number, *fields, again = _PLAIN.unpack(os.pread(self._file, _PLAIN.size, 0))
        if number == again > 0:
            when, phase, step, num_steps, num_batches, *seconds = fields
            self._last = Mark(number, when, Phase(phase), step, num_steps, num_batches, tuple(seconds))
        return self._last

    def close(self) -> None:
        """Frees the memory, as far as no rank has it."""
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
        """Ends the marks of a process that the rank has forked, which does not do the work of the rank."""
        self.memory = None


_own = _Marker()
mark = _own.write
"""Says that this process has come to a phase, or gets on within it."""


def open_memory(path: str) -> None:
    """Makes this process mark its progress there from now on. Raises OSError."""
    file = os.open(path, os.O_RDWR)
    try:
        _own.memory = mmap.mmap(file, _PLAIN.size)
    finally:
        os.close(file)
    os.register_at_fork(after_in_child=_own.forget)
    _own.time = time.monotonic()
    mark(Phase.OUTSIDE)


def begin(step: int = 0) -> None:
    """Says that a training begins behind ``step``: its first steps compile, load and allocate what later ones find."""
    _own.step = step
    _own.num_steps = _own.num_batches = 0
    mark(Phase.OUTSIDE)


def step_done(step: int) -> None:
    """Says that step number ``step``, from 1, is done."""
    _own.step = step
    _own.num_steps += 1
    mark(Phase.BETWEEN)


def batch_evaluated() -> None:
    """Says that a batch of an evaluation is done."""
    _own.num_batches += 1
    mark(_own.phase)


def touch() -> None:
    """Says that what the last mark said goes on. Other threads say nothing of the one that trains."""
    if threading.get_ident() == _own.thread:
        mark(_own.phase)


@contextlib.contextmanager
def within(phase: Phase) -> Iterator[None]:
    """Marks ``phase``, and afterwards the one before again."""
    before = _own.phase
    mark(phase)
    try:
        yield
    finally:
        mark(before)


@contextlib.contextmanager
def exchange() -> Iterator[None]:
    """Marks EXCHANGE while this process may wait for others; within a phase that is not watched it says nothing."""
    if not _own.phase.is_watched:
        yield
        return
    with within(Phase.EXCHANGE):
        yield


class Loading:
    """Marks LOADING between two steps. In every step, so it is a class: a generator costs as much as two marks."""

    def __enter__(self) -> None:
        if _own.phase is Phase.BETWEEN:
            mark(Phase.LOADING)

    def __exit__(self, *raised: object) -> None:
        if _own.phase is Phase.LOADING:
            mark(Phase.BETWEEN)


loading = Loading()
