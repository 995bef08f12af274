"""Which rows form the global batches of an epoch, how each is cut into micro-batches, and which rank takes which.

Arithmetic on arrays only. Cost is counted in tokens after padding, the work of a matrix product.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

PAD_TO = 8  # tokens: lengths of a micro-batch are rounded up to this, which the matrix kernels like
WINDOW = 8  # global batches whose rows are sorted by length together: more saves padding, and costs accuracy
EMPTY = -1


@dataclass(frozen=True)
class EpochBatches:
    """One epoch: micro-batch ``i`` holds ``rows[bounds[i]:bounds[i + 1]]`` and belongs to step ``step_of[i]``."""

    rows: Ints
    """Positions of all rows, each once, in the order of their use."""
    bounds: Ints
    step_of: Ints
    """From 0, per epoch; micro-batches of one step stand together."""

    @property
    def num_steps(self) -> int:
        return int(self.step_of[-1]) + 1


def cut_epochs(
    seed: int, epochs: Iterable[int], lengths: Ints, batch_size: int, micro_batch_size: int, num_micro_batches: int
) -> list[EpochBatches]:
    """Each epoch's global batches of ``batch_size`` rows, the last one smaller, each cut into micro-batches.

    A batch of fewer rows than ``num_micro_batches`` gives one micro-batch per row.
    """
    batches = [_batches(seed, epoch, lengths, batch_size) for epoch in epochs]
    # The batches of all epochs are cut at once: for one of a few rows the calls would take longer than the work.
    starts = [
        _starts(lengths[np.concatenate(of_epochs)], micro_batch_size, min(num_micro_batches, of_epochs[0].shape[1]))
        for of_epochs in zip(*batches, strict=True)
    ]
    per_epoch = zip(*(np.split(start, len(batches)) for start in starts), strict=True)
    num_full, num_left = divmod(len(lengths), batch_size)
    step_of = np.concatenate([np.repeat(np.arange(num_full), batch_size), np.full(num_left, num_full)])
    cuts = []
    for blocks, of_epoch in zip(batches, per_epoch, strict=True):
        first = np.concatenate([start.ravel() for start in of_epoch])
        rows = np.concatenate([block.ravel() for block in blocks])
        cuts.append(EpochBatches(rows, np.append(np.flatnonzero(first), len(rows)), step_of[first]))
    return cuts


def _batches(seed: int, epoch: int, lengths: Ints, batch_size: int) -> list[Ints]:
    """The full batches of an epoch, shape (batches, batch_size), and the one of what is left, where there are such.

    Rows of similar length meet in a batch: a random order is sorted by length within windows, and the batches are
    shuffled again.
    """
    random = np.random.default_rng([seed, epoch])
    order = random.permutation(len(lengths))
    num_full, num_left = divmod(len(lengths), batch_size)
    left, full = order[:num_left], order[num_left:]
    window = WINDOW * batch_size
    windows = [full[start : start + window] for start in range(0, len(full), window)]
    batches = np.concatenate([full[:0], *(rows[np.argsort(-lengths[rows], kind="stable")] for rows in windows)])
    blocks = [batches.reshape(num_full, batch_size)[random.permutation(num_full)]] if num_full else []
    return [*blocks, left[np.argsort(-lengths[left], kind="stable")][None]] if num_left else blocks


def _starts(lengths: Ints, micro_batch_size: int, num_parts: int) -> npt.NDArray[np.bool_]:
    """For batches (rows of ``lengths``, descending): True where a micro-batch starts.

    Every batch is cut into exactly ``num_parts`` parts, the costliest of which is as cheap as can be.
    """
    padded = _padded(lengths)
    low, high = padded[:, 0], padded[:, 0] * micro_batch_size  # cost of one row; of a full part
    while (low < high).any():
        limit = (low + high) // 2
        fits = _cut_within(padded, limit, micro_batch_size, num_parts).sum(axis=1) <= num_parts
        low, high = np.where(fits, low, np.minimum(limit + 1, high)), np.where(fits, limit, high)
    return _cut_within(padded, high, micro_batch_size, num_parts)


def _cut_within(padded: Ints, limit: Ints, micro_batch_size: int, num_parts: int) -> npt.NDArray[np.bool_]:
    num_batches, num_rows = padded.shape
    starts = np.zeros((num_batches, num_rows), dtype=bool)
    starts[:, 0] = True
    longest, size, used = padded[:, 0], np.ones(num_batches, dtype=np.int64), np.ones(num_batches, dtype=np.int64)
    for row in range(1, num_rows):
        too_much = (size == micro_batch_size) | ((size + 1) * longest > limit)
        opens = too_much | (num_rows - row == num_parts - used)  # as many rows left as parts: one each
        starts[:, row] = opens
        longest, size, used = np.where(opens, padded[:, row], longest), np.where(opens, 1, size + 1), used + opens
    return starts


def _padded(lengths: Ints) -> Ints:
    return -(-lengths // PAD_TO) * PAD_TO


def costs_of(cut: EpochBatches, lengths: Ints) -> Ints:
    """Tokens of every micro-batch after padding."""
    longest = np.maximum.reduceat(lengths[cut.rows], cut.bounds[:-1])
    return _padded(longest) * np.diff(cut.bounds)


def assign_to_ranks(cut: EpochBatches, lengths: Ints, world_size: int, accumulation: int) -> Ints:
    """Micro-batches of every rank, step by step: shape (world_size, steps, accumulation), EMPTY where there is none.

    The costliest goes first, always to the rank with the least work so far. Empty ones stand first in their step, so
    that the gradients are exchanged after real work wherever there is any.
    """
    costs = costs_of(cut, lengths)
    load = np.zeros((cut.num_steps, world_size))
    taken = np.zeros((cut.num_steps, world_size), dtype=np.int64)
    assigned = np.full((world_size, cut.num_steps, accumulation), EMPTY, dtype=np.int64)
    ranked = np.lexsort((-costs, cut.step_of))  # within a step by falling cost, ties in their order
    place = np.arange(len(costs)) - np.searchsorted(cut.step_of, cut.step_of)
    for turn in range(int(place.max()) + 1):
        micro = ranked[place == turn]
        step = cut.step_of[micro]
        rank = np.where(taken[step] < accumulation, load[step], np.inf).argmin(axis=1)
        load[step, rank] += costs[micro]
        taken[step, rank] += 1
        assigned[rank, step, accumulation - taken[step, rank]] = micro
    return assigned
