"""Hangs: judges from the marks of a worker's ranks whether one of them gets on no more, and names it. Loads no torch.

A training that is ended for nothing costs more than one that is ended late. So nothing is judged outside of the steps;
the limit follows the training's own steps and the longest pause that it came back from; it is wider for a rank that
computes, and with every hang that the submission has had already.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from train_func import exits
from train_func.attempt_records import Verdict
from train_func.worker.pod.progress_mark import Mark, Phase

SHORTEST, MEDIANS = 9.0, 4.5  # seconds; median steps: a hang is noticed within 10 s, or 5 of them, from where it began
AFTER_PAUSE = 1.5  # of the longest pause in that phase which the rank came back from
NUM_FIRST, FIRST = 5, 600.0  # steps, or batches of evaluations, that may compile, and how many seconds that may take
COMPUTING = 6.0  # times as long for a rank whose processes compute
BUSY = 0.2  # processors, on average, from which on they do; a pod may have less than one
STOPPED = 0.8  # of the shortest limit: a process that a signal has stopped is judged before those that wait for it
WIDER = 12.0  # times as long after each hang of the same submission: after 9 s come 2 minutes, and then 20
WIDER_FIRST = 2.0  # of what may take ten minutes already
LONGEST = 3600.0  # seconds, so that a rank that really hangs is noticed after many hangs too
LATE = 2.0  # seconds between two looks after which this machine, or all of the pod, stood still
_NUM_KEPT = 25  # durations, for the median
_WAITING = (Phase.BACKWARD, Phase.EXCHANGE, Phase.OWN)  # a rank in these may wait for another rank


@dataclass(frozen=True)
class Seen:
    """What a look finds of one rank. ``cpu_seconds`` tells those that its processes have had so far."""

    rank: int
    mark: Mark
    is_stopped: bool
    cpu_seconds: Callable[[], float]


@dataclass(frozen=True)
class Hang:
    """A rank that gets on no more; without a number: all of them, and each may wait for the others."""

    rank: int | None
    mark: Mark
    seconds: float
    """Since its last sign of progress, or since it was stopped."""
    limit: float
    is_stopped: bool = False

    def verdict(self, worker: int) -> Verdict:
        """Of ``worker``, which has found it."""
        who = "no rank gets on, as if each waited for the others" if self.rank is None else f"rank {self.rank} hangs"
        state = "a signal has stopped its process" if self.is_stopped else "no progress"
        message = (
            f"{who}: {state} for {self.seconds:.1f} s in {self.mark.phase.words}, {self.mark.step} steps done; "
            f"{self.limit:.0f} s were allowed. The log has the stacks of all ranks"
        )
        return Verdict(exits.HANG, "hang", message, worker, hangs=self.rank)


class Judge:
    """Of the ranks of one worker in one attempt. ``num_hangs``: that the submission has had before."""

    def __init__(self, num_hangs: int = 0) -> None:
        self._wider, self._wider_first = WIDER**num_hangs, WIDER_FIRST**num_hangs
        self._ranks: dict[int, _Watched] = {}
        self._looked: float | None = None
        self.waiting: Hang | None = None
        """Whether, and how long, every rank of this worker waits for others."""

    def look(self, now: float, seen: Sequence[Seen]) -> Hang | None:
        """The hang that there is at monotonic second ``now``; to be asked several times a second."""
        is_late = self._looked is not None and now - self._looked > LATE
        self._looked = now
        for of in seen:
            self._ranks.setdefault(of.rank, _Watched(of.rank, self._wider, self._wider_first)).see(
                of, now, is_late=is_late
            )
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
    """One rank: its last mark, and what its marks so far tell of how long it may take to the next."""

    def __init__(self, rank: int, wider: float, wider_first: float) -> None:
        self._rank, self._wider, self._wider_first = rank, wider, wider_first
        self._mark = Mark()
        self._since = 0.0
        self._stopped: float | None = None
        self._computing: tuple[float, float] | None = None
        self._cpu_seconds: Callable[[], float] = float
        self._pauses: dict[Phase, float] = {}
        self._steps, self._batches = _Durations(), _Durations()

    def see(self, seen: Seen, now: float, *, is_late: bool) -> None:
        """Takes what a look has found; ``is_late``: the look before was too long ago to tell anything from."""
        last, self._mark, self._cpu_seconds = self._mark, seen.mark, seen.cpu_seconds
        if seen.mark.number != last.number or is_late:
            pause = seen.mark.time - self._since
            if last.phase.is_watched and not (is_late or self._stopped or self._is_first(last)):
                self._pauses[last.phase] = max(pause, self._pauses.get(last.phase, 0.0))
            self._since = now if is_late else seen.mark.time
            self._computing = None
        self._steps.see(seen.mark.num_steps, seen.mark.time)
        self._batches.see(seen.mark.num_batches, seen.mark.time)
        since = now if self._stopped is None or is_late else self._stopped
        self._stopped = since if seen.is_stopped else None
        if self._computing is None and now - self._since > 1:
            self._computing = now, seen.cpu_seconds()

    def stopped(self, now: float) -> Hang | None:
        """Whether a signal has stopped it for too long, whatever it was in."""
        limit = STOPPED * SHORTEST  # no slow callback is stopped
        if self._stopped is None or now - self._stopped < limit:
            return None
        return Hang(self._rank, self._mark, now - self._stopped, limit, is_stopped=True)

    def silent(self, now: float) -> Hang | None:
        """Whether it has shown no progress for too long."""
        seconds, limit = now - self._since, self._limit()
        if not self._mark.phase.is_watched or seconds < limit:
            return None
        if self._mark.phase is not Phase.EXCHANGE and self._computes(now):  # waiting for a GPU also looks so
            limit = _wider(limit, COMPUTING)
        return Hang(self._rank, self._mark, seconds, limit) if seconds >= limit else None

    def _limit(self) -> float:
        if self._is_first(self._mark):
            return _wider(FIRST, self._wider_first)
        durations = self._batches if self._mark.phase is Phase.EVALUATION else self._steps
        pause = self._pauses.get(self._mark.phase, 0.0)
        return _wider(max(SHORTEST, MEDIANS * durations.median, AFTER_PAUSE * pause), self._wider)

    def _computes(self, now: float) -> bool:
        if self._computing is None:
            return False
        since, seconds = self._computing
        return now > since and (self._cpu_seconds() - seconds) / (now - since) > BUSY

    @staticmethod
    def _is_first(mark: Mark) -> bool:
        return (mark.num_batches if mark.phase is Phase.EVALUATION else mark.num_steps) < NUM_FIRST


def _wider(limit: float, times: float) -> float:
    return max(limit, min(limit * times, LONGEST))


class _Durations:
    """Of what is counted: steps, or batches of evaluations."""

    def __init__(self) -> None:
        self._last = (0, 0.0)
        self._kept: deque[float] = deque(maxlen=_NUM_KEPT)

    def see(self, count: int, seconds: float) -> None:
        """``count`` of them at this time; a lower one than before begins anew."""
        if (num := count - self._last[0]) > 0 and self._last[0]:
            self._kept.append((seconds - self._last[1]) / num)
        if num:
            self._last = count, seconds

    @property
    def median(self) -> float:
        return median(self._kept) if self._kept else 0.0
