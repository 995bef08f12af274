"""Why a training is slow: which rank the others wait for, and in what, from how the time of each rank is spent.

In a synchronous training every rank waits in the exchange for the slowest one, so that one waits least. It is named
where its own work takes plainly longer than that of the others, and they wait plainly longer than it does. Where all
are in the exchange for most of their time, and none is behind, the exchange itself is slow.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

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


@dataclass(frozen=True)
class RankTime:
    """How a rank has spent the seconds of an interval."""

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
    """Why a training is slower than it could be."""

    part: str
    """In which part of the time that shows."""
    rank: int | None
    """The rank that the others wait for; None where the exchange itself is slow."""
    worker: int | None
    message: str

    @property
    def remedy(self) -> str:
        """Returns what to do about it."""
        return REMEDIES[self.part]


def slowness_of(ranks: Sequence[RankTime]) -> Slowness | None:
    """Returns why the training was slow in an interval of several steps; None where nothing stands out."""
    if len(ranks) < 2:
        return None
    slowest = min(ranks, key=lambda rank: rank.share("exchange"))
    others = [rank for rank in ranks if rank is not slowest]
    waits = median(rank.share("exchange") for rank in others) - slowest.share("exchange")
    works = median(rank.work / max(rank.num_steps, 1) for rank in others)
    if waits >= LEAST_WAIT and slowest.work / max(slowest.num_steps, 1) >= SLOWER * works:
        shares = {part: (slowest.share(part), median(rank.share(part) for rank in others)) for part in WORK}
        part = max(shares, key=lambda name: shares[name][0] - shares[name][1])
        own, theirs = shares[part]
        message = (
            f"rank {slowest.rank} (worker {slowest.worker}) is slower than the others in {WORK[part]}: "
            f"{100 * own:.0f} % of its time, {100 * theirs:.0f} % of theirs; "
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
