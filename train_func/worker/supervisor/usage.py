"""The usage of each worker: memory of its processes and time of its ranks; and the reason why a training is slow.

Every worker measures itself and reports to the lead, whose log has a line about all of them now and then. So a client
needs only that log, for any number of workers.

In a synchronous training every rank waits in the exchange for the slowest one, so the slowest one waits least. It is
named if its own work takes clearly longer than that of the others, and they wait clearly longer than it does. If all
ranks spend most of their time in the exchange, and none is behind, the exchange itself is slow. Loads no torch.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from train_func.process.process_tree import descendants, unreclaimable_bytes
from train_func.wire.events import WorkersMeasured
from train_func.worker.rank.marks import Mark, Phase

MEASURE_SECONDS = 5.0  # seconds between two measurements of a worker
MEMORY_SHARE = 0.01  # of the time at most is spent on the measuring of memory, which reads all pages of the processes
LINE_SECONDS, LONGEST_LINE_SECONDS = 10.0, 60.0  # between two lines: more of them would fill the log of a long job
LINE_SHARE = 1 / 60  # of the time that has passed
LEAST_STEPS = 10  # of each rank in an interval, so that parts of steps at its ends count little
MOST_WORKERS, MOST_RANKS = 16, 96  # in a line
SLOWER = 1.25  # times the work of the others
LEAST_WAIT = 0.1  # of the time of the others, that they wait longer than the slow rank
NETWORK = 0.5  # of the time of every rank, in the exchange
WORK = {
    "data": "loading data",
    "compute": "computing",
    "saving": "saving checkpoints",
    "callbacks": "callbacks",
}
REMEDIES = {
    "data": "see whether its node reads the data more slowly, or its rows take longer to decode; "
    "session.arguments(dataloader_num_workers=2) loads them beside the steps",
    "compute": "see what else runs on its node, whether a limit or heat throttles its processors, and whether the "
    "function does more on this rank; on a cluster job.move(worker, to=...) starts a worker on another node",
    "saving": "save less often with Run(checkpoint_every=...), or see whether the disk of its node is slow",
    "callbacks": "have the callbacks of this rank do less, or do it less often",
    "exchange": "a larger batch_size exchanges less often for the same rows; fewer workers with more cores each, or a "
    "faster network between their nodes, make each exchange shorter",
}
PHASES = {
    Phase.LOADING: "data",
    Phase.STEP: "compute",
    Phase.OWN: "compute",
    Phase.EXCHANGE: "exchange",
    Phase.SAVING: "saving",
    Phase.EVALUATION: "evaluation",
    Phase.BETWEEN: "callbacks",
    Phase.OUTSIDE: "other",
}


@dataclass(frozen=True)
class RankUsage:
    """The time of a rank since it began."""

    rank: int
    num_steps: int
    seconds: tuple[float, ...] = ()
    """Seconds in each phase, by its number."""


@dataclass(frozen=True)
class Usage:
    """The usage of a worker."""

    memory: int
    """Bytes that its processes hold together and that the kernel cannot reclaim."""
    limit: int
    """Bytes that they may hold; 0 if there is no limit."""
    ranks: tuple[RankUsage, ...]


@dataclass(frozen=True)
class RankTime:
    """The time of a rank in an interval."""

    rank: int
    worker: int
    num_steps: int
    """Steps that it has done."""
    data: float = 0.0
    compute: float = 0.0
    exchange: float = 0.0
    saving: float = 0.0
    evaluation: float = 0.0
    callbacks: float = 0.0
    other: float = 0.0

    @property
    def work(self) -> float:
        """Returns the seconds of work among the steps that waits for no other rank."""
        return self.data + self.compute + self.saving + self.callbacks

    def share(self, part: str) -> float:
        """Returns how much of its time among the steps a part has."""
        seconds: float = getattr(self, part)
        return seconds / max(self.work + self.exchange, 1e-9)


@dataclass(frozen=True)
class Slowness:
    """A reason why a training is slower than it could be."""

    part: str
    """In which part of the time that shows."""
    rank: int | None
    """The rank that the others wait for; None where the exchange itself is slow."""
    worker: int | None
    message: str

    @property
    def remedy(self) -> str:
        """Returns the remedy."""
        return REMEDIES[self.part]


def slowness_of(ranks: Sequence[RankTime]) -> Slowness | None:
    """Returns why the training was slow in an interval of several steps; None if nothing stands out."""
    if len(ranks) < 2:
        return None
    slowest = min(ranks, key=lambda rank: rank.share("exchange"))
    rest = [rank for rank in ranks if rank is not slowest]
    waits = median(rank.share("exchange") for rank in rest) - slowest.share("exchange")
    works = median(rank.work / max(rank.num_steps, 1) for rank in rest)
    if waits >= LEAST_WAIT and slowest.work / max(slowest.num_steps, 1) >= SLOWER * works:
        shares = {part: (slowest.share(part), median(rank.share(part) for rank in rest)) for part in WORK}
        part = max(shares, key=lambda name: shares[name][0] - shares[name][1])
        slow_share, usual_share = shares[part]
        message = (
            f"rank {slowest.rank} (worker {slowest.worker}) is slower than the others in {WORK[part]}: "
            f"{100 * slow_share:.0f} % of its time, {100 * usual_share:.0f} % of theirs; "
            f"they wait for it for {100 * waits:.0f} % of their time"
        )
        return Slowness(part, slowest.rank, slowest.worker, message)
    least = slowest.share("exchange")
    if least < NETWORK:
        return None
    message = (
        f"all {len(ranks)} ranks spend at least {100 * least:.0f} % of their time in the exchange, and none of them is "
        "behind: the network is slow, or the steps are short for it"
    )
    return Slowness("exchange", None, None, message)


class UsageMeter:
    """Measures this worker; ``limit``: bytes that its processes may hold, 0 if there is no limit."""

    def __init__(self, limit: int) -> None:
        self._limit, self._memory = limit, 0
        self._next = self._next_memory = 0.0

    def measure(self, marks: Callable[[], Mapping[int, Mark]]) -> Usage | None:
        """Returns the usage of this worker every few seconds, else None; ``marks`` returns the marks of its ranks."""
        now = time.monotonic()
        if now < self._next:
            return None
        self._next = now + MEASURE_SECONDS
        if now >= self._next_memory:
            self._memory = unreclaimable_bytes(descendants(os.getpid()))
            self._next_memory = now + max(MEASURE_SECONDS, (time.monotonic() - now) / MEMORY_SHARE)
        ranks = []
        for rank, mark in marks().items():
            seconds = tuple(round(spent, 3) for spent in mark.seconds_at(now)) if mark.number else ()
            ranks.append(RankUsage(rank, mark.num_steps, seconds))
        return Usage(self._memory, self._limit, tuple(ranks))


class GroupMeter:
    """Reports the usage of all workers of a group, and why they are slow, while their ranks run."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun = self._since = clock()
        self._next = self._begun + LINE_SECONDS
        self._before: Mapping[int, RankUsage] = {}  # by rank, at the beginning of the interval
        self._num_steps = 0  # of the interval, at the last line
        self._suspicion: Slowness | None = None
        self._slowness: Slowness | None = None

    def measure(self, usages: Callable[[], Mapping[int, Usage]]) -> WorkersMeasured | None:
        """Returns the event of an interval when it has ended, else None.

        A rank counts as slow only if it was slow in two intervals in a row, because a single pause is no slowness.

        Args:
            usages: returns the last measurement of each worker.
        """
        now = self._clock()
        if now < self._next:
            return None
        workers = usages()
        if not workers:
            return None
        self._next = now + min(LONGEST_LINE_SECONDS, max(LINE_SECONDS, LINE_SHARE * (now - self._begun)))
        times = [self._time(worker, rank) for worker, usage in workers.items() for rank in usage.ranks]
        seconds = now - self._since
        num_steps = min((rank.num_steps for rank in times), default=0)
        if num_steps >= LEAST_STEPS:
            before, slowness = self._suspicion, slowness_of(times)
            is_same = before and slowness and (before.part, before.worker) == (slowness.part, slowness.worker)
            self._suspicion, self._slowness = slowness, slowness if is_same else None
            self._before = {rank.rank: rank for usage in workers.values() for rank in usage.ranks}
            self._since, num_steps = now, 0
        elif num_steps == self._num_steps:  # nothing is slow while nothing trains, as in a long evaluation
            self._slowness = None
        self._num_steps = num_steps
        return measurement_event(seconds, workers, times, self._slowness)

    def _time(self, worker: int, rank: RankUsage) -> RankTime:
        """Returns the time of a rank in the interval; its steps count from 0 after it has begun another training."""
        before = self._before.get(rank.rank, RankUsage(rank.rank, 0))
        seconds = dict.fromkeys(PHASES.values(), 0.0)
        for phase, spent in enumerate(rank.seconds):
            seconds[PHASES[Phase(phase)]] += spent - (before.seconds[phase] if before.seconds else 0.0)
        num_steps = rank.num_steps - (before.num_steps if rank.num_steps >= before.num_steps else 0)
        return RankTime(rank.rank, worker, num_steps, **seconds)


def measurement_event(
    seconds: float, workers: Mapping[int, Usage], times: Sequence[RankTime], slowness: Slowness | None
) -> WorkersMeasured:
    """Returns the event of an interval; of many workers it lists those that wait least and hold most memory."""
    by_worker: dict[int, list[RankTime]] = {worker: [] for worker in workers}
    for rank in times:
        by_worker[rank.worker].append(rank)
    least = sorted(by_worker, key=lambda worker: min((rank.share("exchange") for rank in by_worker[worker]), default=1))
    most = sorted(workers, key=lambda worker: -workers[worker].memory)
    chosen: list[int] = []
    for worker in (worker for pair in zip(least, most, strict=True) for worker in pair):
        num_ranks = sum(len(by_worker[other]) for other in {*chosen, worker})
        if worker not in chosen and len(chosen) < MOST_WORKERS and num_ranks <= MOST_RANKS:
            chosen.append(worker)
    shares: dict[int, list[int]] = {}  # percent of the time of each rank, by its parts
    for rank in times:
        parts = [getattr(rank, part) for part in WorkersMeasured.PARTS]
        total = max(sum(parts) + rank.other, 1e-9)
        shares[rank.rank] = [round(100 * part / total) for part in parts]
    event = WorkersMeasured(
        seconds=round(seconds, 1),
        num_workers=len(workers),
        workers={
            str(worker): {
                "memory": workers[worker].memory,
                "limit": workers[worker].limit,
                "ranks": {str(rank.rank): shares[rank.rank] for rank in by_worker[worker]},
            }
            for worker in sorted(chosen)
        },
        median=[round(median(part)) for part in zip(*shares.values(), strict=True)],
    )
    if slowness is None:
        return event
    return replace(
        event,
        slow_part=slowness.part,
        slow_rank=slowness.rank,
        slow_worker=slowness.worker,
        message=slowness.message,
        remedy=slowness.remedy,
    )
