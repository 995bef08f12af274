"""Hangs: from the marks of a worker's ranks it is judged whether one of them makes no progress, and which.

Nothing is judged before the first step of an attempt and the first batch of its evaluations, which may compile for
minutes, nor outside of the steps, as in a save. A rank whose steps are long is given longer. The workers agree that all
ranks hang before one is told, and the stacks of all are printed. Loads no torch.
"""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from train_func import exits
from train_func.process_tree import is_stopped, kernel_state
from train_func.records import Verdict
from train_func.worker.rank import marks, stacks
from train_func.worker.rank.marks import Mark, Phase, SharedMark

LATE = 2.0  # seconds between two looks after which this machine, or all of the pod, stood still
LONGER = 3.0  # times the longest interval between two marks of a rank so far: it may last that long again
STOPPED = 0.8  # of the limit: a process that a signal has stopped is judged before those that wait for it
_WAITING = (Phase.BACKWARD, Phase.EXCHANGE, Phase.OWN)  # a rank in these may wait for another rank


@dataclass(frozen=True)
class Seen:
    """One rank at the moment of a look."""

    rank: int
    mark: Mark
    is_stopped: bool


@dataclass(frozen=True)
class Hang:
    """A rank that makes no progress; without a number: all of them, and each may wait for the others."""

    rank: int | None
    mark: Mark
    seconds: float
    """Since its last sign of progress, or since it was stopped."""
    limit: float
    is_stopped: bool = False

    def verdict(self, worker: int) -> Verdict:
        """Returns the verdict of ``worker``, which has noticed the hang."""
        who = "no rank makes progress, as if each waited for the others"
        who = who if self.rank is None else f"rank {self.rank} hangs"
        state = "a signal has stopped its process" if self.is_stopped else "no progress"
        message = (
            f"{who}: {state} for {self.seconds:.1f} s in {self.mark.phase.words}, {self.mark.step} steps done; "
            f"{round(self.limit, 1):g} s are allowed, and Run(hang_after=...) allows more. "
            "The log has the stacks of all ranks"
        )
        return Verdict(exits.HANG, "hang", message, worker, hangs=self.rank)


class Judge:
    """Judges the ranks of one worker in one attempt. ``limit``: fewest seconds without progress that are a hang."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._ranks: dict[int, _Watched] = {}
        self._looked: float | None = None
        self.waiting: Hang | None = None
        """Whether, and how long, every rank of this worker waits for others."""

    def look(self, now: float, seen: Sequence[Seen]) -> Hang | None:
        """Returns the hang at monotonic second ``now``, if any; to be called several times a second."""
        is_late = self._looked is not None and now - self._looked > LATE
        self._looked = now
        stood_still = is_late or any(of.is_stopped for of in seen)  # for which the other ranks may have waited
        for of in seen:
            rank = self._ranks.setdefault(of.rank, _Watched(of.rank, self._limit))
            rank.see(of, now, is_late=is_late, stood_still=stood_still)
        ranks = [self._ranks[of.rank] for of in seen]
        if stopped := [hang for rank in ranks if (hang := rank.stopped(now))]:
            return stopped[0]
        silent = [hang for rank in ranks if (hang := rank.silent(now))]
        if own := [hang for hang in silent if hang.mark.phase not in _WAITING]:
            return min(own, key=lambda hang: (hang.mark.step, -hang.seconds))
        all_wait = len(silent) == len(ranks)
        self.waiting = max(silent, key=lambda hang: hang.seconds) if silent and all_wait else None
        return None


class _Watched:
    """One rank: its last mark, since when it is there, and since when a signal has stopped the process.

    An interval between two marks shows how long a rank may be silent, unless a process stood still in it.
    """

    def __init__(self, rank: int, limit: float) -> None:
        self._rank, self._limit = rank, limit
        self._mark = Mark()
        self._since = 0.0
        self._stopped: float | None = None
        self._longest = 0.0
        self._stood_still = False  # since the last mark

    def see(self, seen: Seen, now: float, *, is_late: bool, stood_still: bool) -> None:
        """Takes what a look has found.

        ``is_late``: the look before was too long ago to tell anything from. ``stood_still``: so it was, or a process of
        the worker is stopped.
        """
        is_new = seen.mark.number != self._mark.number
        if is_new and self._mark.phase.is_watched and not (self._stood_still or stood_still):
            self._longest = max(self._longest, seen.mark.time - self._mark.time)
        self._stood_still = stood_still or (self._stood_still and not is_new)
        if is_new or is_late:
            self._since = now if is_late else seen.mark.time
        self._mark = seen.mark
        since = now if self._stopped is None or is_late else self._stopped
        self._stopped = since if seen.is_stopped else None

    def stopped(self, now: float) -> Hang | None:
        """Whether a signal has stopped it for too long, whatever it was in."""
        limit = STOPPED * self._limit
        if self._stopped is None or now - self._stopped < limit:
            return None
        return Hang(self._rank, self._mark, now - self._stopped, limit, is_stopped=True)

    def silent(self, now: float) -> Hang | None:
        """Whether it has shown no progress for too long."""
        limit = max(self._limit, LONGER * self._longest)
        if not self._mark.phase.is_watched or self._is_first() or now - self._since < limit:
            return None
        return Hang(self._rank, self._mark, now - self._since, limit)

    def _is_first(self) -> bool:
        mark = self._mark
        return (mark.num_batches if mark.phase is Phase.EVALUATION else mark.num_steps) == 0


LONGEST_STACKS = 1000  # lines of a rank that are kept: the last ones, which are of its main thread


class Group(Protocol):
    """The part of Member that is used here."""

    def wait(self, waits: bool) -> bool: ...


class HangWatch:
    """Watches the ranks of one attempt. A rank is watched once its environment has what ``variables`` gives for it."""

    def __init__(self, num_ranks: int, limit: float) -> None:
        """``num_ranks``: of the whole group; ``limit``: seconds without progress that are a hang."""
        self._num_ranks = num_ranks
        self._judge = Judge(limit)
        self._marks: dict[int, SharedMark] = {}
        self._stacks: dict[int, deque[str]] = {}

    def variables(self, rank: int) -> dict[str, str]:
        """Returns what the environment of this rank needs."""
        self._marks[rank] = SharedMark()
        return {marks.VARIABLE: self._marks[rank].path}

    def look(self, pids: Mapping[int, int], group: Group) -> Hang | None:
        """Returns the hang, if any; ``pids``: of the ranks that live, by rank. To be called several times a second."""
        seen = [Seen(rank, self._marks[rank].read(), is_stopped(pid)) for rank, pid in pids.items()]
        if hang := self._judge.look(time.monotonic(), seen):
            return hang
        waiting = self._judge.waiting if len(pids) == len(self._marks) else None
        if not group.wait(waiting is not None) or waiting is None:
            return None
        return waiting if self._num_ranks == 1 else replace(waiting, rank=None)

    def print_stacks(self, pids: Mapping[int, int]) -> None:
        """Prints where each of these ranks is, and has them print their stacks."""
        for rank, pid in pids.items():
            self._stacks[rank] = deque(maxlen=LONGEST_STACKS)
            mark = self._marks[rank].read()
            silent = time.monotonic() - mark.time
            place = f"{mark.phase.words}, {mark.step} steps done, last sign of progress {silent:.1f} s ago"
            print(f"rank {rank} is in {place if mark.number else 'its start'}; its process: {kernel_state(pid)}")
        stacks.ask(pid for rank, pid in pids.items() if self._marks[rank].read().number)

    def hear(self, rank: int, line: str) -> None:
        """Takes a line of the trace of a rank."""
        if (lines := self._stacks.get(rank)) is not None:
            lines.append(line)

    def stacks_of(self, rank: int) -> str:
        """Returns the stacks that the rank printed last; empty if it printed none."""
        return "\n".join(self._stacks.get(rank, []))

    def close(self) -> int:
        """Frees the memory of the marks, when no rank lives any more; returns the last step that was done."""
        step = 0
        while self._marks:
            _, mark = self._marks.popitem()
            step = max(step, mark.read().step)
            mark.close()
        return step
