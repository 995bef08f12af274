"""Watches the ranks of one worker for hangs, together with the other workers, and has their stacks printed."""

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from train_func.worker.pod import progress_mark, stacks
from train_func.worker.pod.hang import Hang, Judge, Seen
from train_func.worker.pod.processes import is_stopped, kernel_state
from train_func.worker.pod.progress_mark import SharedMark

LONGEST_STACKS = 1000  # lines of a rank that are kept: the last ones, which are of its main thread


class Group(Protocol):
    """The part of Peers that is used here."""

    def tell_waiting(self, waiting: bool) -> bool: ...


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
        return {progress_mark.VARIABLE: self._marks[rank].path}

    def look(self, pids: Mapping[int, int], group: Group) -> Hang | None:
        """Returns the hang, if any; ``pids``: of the ranks that live, by rank. To be called several times a second."""
        seen = [Seen(rank, self._marks[rank].read(), is_stopped(pid)) for rank, pid in pids.items()]
        if hang := self._judge.look(time.monotonic(), seen):
            return hang
        waiting = self._judge.waiting if len(pids) == len(self._marks) else None
        if not group.tell_waiting(waiting is not None) or waiting is None:
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
