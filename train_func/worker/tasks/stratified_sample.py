"""Draws rows so that every class keeps its share; the same seed draws the same rows on every machine, forever."""

import numpy as np


def stratified_sample(codes: np.ndarray, num: int, *, seed: int, stream: int, leave: int = 0) -> np.ndarray:
    """Positions, in ascending order, of ``num`` rows, from each class in proportion.

    Args:
        codes: class of every row, 0, 1, ...
        seed: from the Run.
        stream: tells draws of the same run apart.
        leave: rows of each class that must not be drawn.
    """
    counts = np.bincount(codes)
    share = allocate(counts, num, leave=leave)
    # RandomState's numbers never change between versions of numpy; those of its successors may.
    keys = np.random.RandomState(np.array([seed, stream], dtype=np.uint32)).random_sample(len(codes))
    order = np.lexsort((keys, codes))
    first = np.cumsum(counts) - counts
    rank = np.empty(len(codes), dtype=np.int64)
    rank[order] = np.arange(len(codes)) - np.repeat(first, counts)
    return np.flatnonzero(rank < share[codes])


def allocate(counts: np.ndarray, num: int, *, leave: int = 0) -> np.ndarray:
    """How many of ``num`` rows come from each class: in proportion, at least one where there are enough.

    Sums to ``num``, or to all that may be drawn when that is less.
    """
    most = np.maximum(counts - leave, 0)
    num = min(num, int(most.sum()))
    quota = counts * (num / max(1, counts.sum()))
    least = np.minimum(most, 1) if num >= (most > 0).sum() else np.zeros_like(most)
    share: np.ndarray = np.clip(np.floor(quota).astype(np.int64), least, most)
    while (missing := num - int(share.sum())) != 0:
        # Largest remainder first, the lower class on a tie; one row at a time, at most one round per class.
        step = 1 if missing > 0 else -1
        movable = share < most if step > 0 else share > least
        gap = np.where(movable, (quota - share) * step, -np.inf)
        share[int(np.argmax(gap))] += step
    return share
