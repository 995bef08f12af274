"""Hangs: the supervisor reads the progress marks of its ranks, and finds a rank that makes no progress.

A rank hangs that has set no mark for ``Run(hang_after=...)`` seconds. Nothing is judged before the first step of an
attempt and the first batch of its evaluations, which may compile for minutes, nor outside of the steps, as in a save.
A rank that may wait for another one is not blamed: only when every rank of every worker waits is that a hang, of all.
The time for which this whole machine or pod stood still does not count. Loads no torch.
"""

import contextlib
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from train_func.wire import exits
from train_func.wire.records import Verdict
from train_func.worker.rank import marks, stacks
from train_func.worker.rank.marks import Mark, Phase, SharedMark
from train_func.worker.supervisor.group import Member

STANDSTILL_SECONDS = 2.0  # between two looks without work of this process: this machine, or all of the pod, stood still
STOPPED_SHARE = 0.8  # of the limit: a process that a signal has stopped is judged before those that wait for it
LONGEST_STACKS = 1000  # lines of a rank that are kept: the last ones, which are of its main thread
_WAITING = (Phase.EXCHANGE, Phase.OWN)  # a rank in these may wait for another rank


@dataclass(frozen=True)
class RankState:
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
        state = "a signal has stopped its process" if self.is_stopped else "no progress"
        who = "no rank makes progress" if self.rank is None else f"rank {self.rank} hangs: {state}"
        message = (
            f"{who} for {self.seconds:.1f} s in {self.mark.phase.words}, {self.mark.step} steps done; "
            f"{round(self.limit, 1):g} s are allowed, and Run(hang_after=...) allows more. "
            "The log has the stacks of all ranks"
        )
        return Verdict(exits.HANG, "hang", message, worker, hangs=self.rank)


class Judge:
    """Judges the ranks of one worker in one attempt; ``limit``: seconds without progress that count as a hang."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._looked = self._worked = 0.0
        self._went_on = 0.0  # when this machine did, the last time that it stood still
        self._stopped: dict[int, float] = {}  # since when, by rank
        self.waiting: Hang | None = None
        """The longest wait, if every rank of this worker waits for others; else None."""

    def look(self, now: float, states: Sequence[RankState], worked: float) -> Hang | None:
        """Returns the hang at monotonic second ``now``, if any; called several times a second.

        ``worked``: CPU seconds of this process so far; measuring the memory of large ranks may take seconds.
        """
        if now - self._looked - (worked - self._worked) > STANDSTILL_SECONDS:
            self._went_on = now
            self._stopped = {}
        self._looked, self._worked = now, worked
        self._stopped = {state.rank: self._stopped.get(state.rank, now) for state in states if state.is_stopped}
        silent = []
        for state in states:
            seconds, limit = now - self._stopped.get(state.rank, now), STOPPED_SHARE * self._limit
            if seconds >= limit:
                return Hang(state.rank, state.mark, seconds, limit, is_stopped=True)
            seconds = now - max(state.mark.time, self._went_on)
            if state.mark.is_watched and seconds >= self._limit:
                silent.append(Hang(state.rank, state.mark, seconds, self._limit))
        blamed = [hang for hang in silent if hang.mark.phase not in _WAITING]
        if blamed:
            return min(blamed, key=lambda hang: (hang.mark.step, -hang.seconds))
        all_wait = len(silent) == len(states)
        self.waiting = max(silent, key=lambda hang: hang.seconds) if silent and all_wait else None
        return None


class HangWatch:
    """Watches the ranks of one attempt; a rank needs the ``variables`` of it in its environment."""

    def __init__(self, limit: float) -> None:
        """``limit``: seconds without progress that are a hang."""
        self._judge = Judge(limit)
        self._marks: dict[int, SharedMark] = {}
        self._stacks: dict[int, deque[str]] = {}

    def variables(self, rank: int) -> dict[str, str]:
        """Returns the variables for the environment of this rank."""
        self._marks[rank] = SharedMark()
        return {marks.VARIABLE: self._marks[rank].path}

    def look(self, pids: Mapping[int, int], group: Member, world_size: int) -> Hang | None:
        """Returns the hang, if any; called several times a second.

        ``pids``: process ids of the living ranks, by rank. ``world_size``: number of ranks of the whole group.
        """
        states = [RankState(rank, self._marks[rank].read(), _state(pid) == "T") for rank, pid in pids.items()]
        if hang := self._judge.look(time.monotonic(), states, time.process_time()):
            return hang
        waiting = self._judge.waiting if len(pids) == len(self._marks) else None
        if not group.wait(waiting is not None) or waiting is None:
            return None
        return waiting if world_size == 1 else replace(waiting, rank=None)

    def marks(self, ranks: Iterable[int]) -> dict[int, Mark]:
        """Returns the last marks of these ranks."""
        return {rank: self._marks[rank].read() for rank in ranks}

    def print_stacks(self, pids: Mapping[int, int]) -> None:
        """Prints the phase of each of these ranks, and makes them print their stacks."""
        for rank, pid in pids.items():
            self._stacks[rank] = deque(maxlen=LONGEST_STACKS)
            mark = self._marks[rank].read()
            silent = time.monotonic() - mark.time
            place = f"{mark.phase.words}, {mark.step} steps done, last sign of progress {silent:.1f} s ago"
            print(f"rank {rank} is in {place if mark.number else 'its start'}; its process: {_state(pid)}")
        stacks.ask(pid for rank, pid in pids.items() if self._marks[rank].read().number)

    def hear(self, rank: int, line: str) -> None:
        """Takes a line of the trace of a rank."""
        if (lines := self._stacks.get(rank)) is not None:
            lines.append(line)

    def stacks_of(self, rank: int) -> str:
        """Returns the stacks that the rank printed last; empty if it printed none."""
        return "\n".join(self._stacks.get(rank, []))

    def close(self) -> int:
        """Frees the memory of the marks after the ranks have ended; returns the last step that is done."""
        step = 0
        while self._marks:
            _, mark = self._marks.popitem()
            step = max(step, mark.read().step)
            mark.close()
        return step


def _state(pid: int) -> str:
    """Returns the state of a process as ps shows it, a letter; empty if the process has gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""
