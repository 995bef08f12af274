"""Chooses the rows to train on and to hold out, so that every class keeps its share.

The same seed chooses the same rows on every machine, with every version of numpy.
"""

import math

import numpy as np

from train_func.errors import InvalidInput

_SAMPLE, _HOLD_OUT = 1, 2  # streams of the run's seed


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


def choose_rows(
    codes: np.ndarray,
    held_out: np.ndarray | float,
    *,
    seed: int,
    samples: int | None,
    where: str,
    each_class: bool = True,
) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the rows to train on among ``codes``, and of those held out among ``held_out``, else ``codes``.

    Args:
        codes: class of every training row, 0, 1, ...
        held_out: the same of held-out rows that are a split of their own, or the share of the training rows to hold
            out.
        samples: how many rows are used, of both sides together; None: all.
        where: how messages call the data set.
        each_class: whether a row of each class is expected on both sides; else one row is.

    Raises:
        InvalidInput: there are too few rows for that.
    """
    if isinstance(held_out, np.ndarray):
        return _sampled(samples, seed, codes, held_out, each_class=each_class)
    used = np.arange(len(codes))
    if samples is not None:
        used = stratified_sample(codes, samples, seed=seed, stream=_SAMPLE)
    num_held = round(len(used) * held_out)
    num_classes = len(np.unique(codes)) if each_class else 1
    if len(used) < 2 * num_classes:
        rows = f"samples={samples}" if len(used) < len(codes) else f"{where}: {len(codes)} rows"
        raise InvalidInput(
            f"{rows}: at least {2 * num_classes} rows are expected, one{_of_each(num_classes)} "
            "to train and one held out",
            cause="data",
        )
    if not num_classes <= num_held <= len(used) - num_classes:
        raise InvalidInput(
            f"held_out={held_out}: {num_held} of {len(used)} rows held out, {len(used) - num_held} to train on; "
            f"one row{_of_each(num_classes)} is expected on both sides: "
            f"{_remedy(held_out, num_classes, len(used), len(codes))}",
            cause="data",
        )
    leave = int(num_held <= len(used) - len(np.unique(codes[used])))  # else some rows are the only ones of their class
    held = stratified_sample(codes[used], num_held, seed=seed, stream=_HOLD_OUT, leave=leave)
    return np.delete(used, held), used[held]


def _of_each(num_classes: int) -> str:
    return f" of each of the {num_classes} classes" if num_classes > 1 else ""


def _remedy(share: float, num_classes: int, num_used: int, num_rows: int) -> str:
    """The shares that hold out and leave enough rows; where hardly one does, the rows that ``share`` needs."""
    low = math.ceil(num_classes / num_used * 1000) / 1000
    high = math.floor((1 - num_classes / num_used) * 1000) / 1000
    if low < high:
        return f"give a share from {low} to {high}"
    wanted = max(2 * num_classes, int((num_classes - 1) / min(share, 1 - share)))
    while not num_classes <= round(wanted * share) <= wanted - num_classes:
        wanted += 1
    if wanted <= num_rows:
        return f"give samples={wanted} or more"
    return f"with this share {wanted} rows or more are expected, and there are {num_rows}"


def _sampled(
    samples: int | None, seed: int, train: np.ndarray, held_out: np.ndarray, *, each_class: bool
) -> tuple[np.ndarray, np.ndarray]:
    """All rows of two parts, or ``samples`` of both together."""
    total = len(train) + len(held_out)
    if samples is None or samples >= total:
        return np.arange(len(train)), np.arange(len(held_out))
    num_held = round(samples * len(held_out) / total)
    num_classes = len(np.unique(train)) if each_class else 1
    if min(num_held, samples - num_held) < num_classes:
        wanted = math.ceil(num_classes * total / min(len(train), len(held_out)))
        raise InvalidInput(
            f"samples={samples}: divided as the two splits are, {len(train)} to {len(held_out)}, that is "
            f"{samples - num_held} rows to train on and {num_held} held out; one{_of_each(num_classes)} is expected on "
            f"both sides: give samples={wanted} or more",
            cause="data",
        )
    return (
        stratified_sample(train, samples - num_held, seed=seed, stream=_SAMPLE),
        stratified_sample(held_out, num_held, seed=seed, stream=_SAMPLE),
    )
