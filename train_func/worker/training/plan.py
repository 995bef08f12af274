"""The plan: the micro-batches of a whole run as a data set, which is split once over the ranks.

A global batch, and the micro-batches it is cut into, depend on the seed, the epoch, the lengths of the rows and the
batch size alone; the world size only decides which rank works on which micro-batch. The work of a micro-batch is
counted in tokens after padding, the work of a matrix product, and balanced over the ranks by arithmetic on arrays.
"""

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, DatasetInfo
from datasets.table import InMemoryTable
from datasets.utils._dill import pklregister

from train_func.errors import InvalidInput

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


CALL = "split_dataset_by_node(session.plan(train), session.rank, session.world_size)"
TRAINER, STEPS = "Trainer", "session.steps"  # what a plan is given to, as messages name it
GIVEN = {TRAINER: f"train_dataset={CALL}", STEPS: f"session.steps({CALL})"}
ROW_ID = "row_id"
LENGTH_COLUMN = "input_ids"
ROWS_SHA256 = "rows_sha256"


@dataclass(frozen=True)
class PlanFacts:
    """What a plan says about itself; every part taken of it says the same."""

    num_entries: int
    """Micro-batches over all epochs and ranks, the empty ones included."""
    num_rows: int
    num_epochs: int
    steps_per_epoch: int
    accumulation: int
    """Micro-batches of one rank for one step."""
    world_size: int
    seed: int
    batch_size: int
    micro_batch_size: int
    rows_sha256: str
    """Of the row ids, in the order of the rows, and of the rows' lengths."""

    @property
    def identity(self) -> dict[str, int | str]:
        """What decides the rows of every step: neither the number of ranks nor the cut into micro-batches."""
        return {
            "rows": self.num_rows,
            "epochs": self.num_epochs,
            "batch_size": self.batch_size,
            "steps per epoch": self.steps_per_epoch,
            "seed": self.seed,
            ROWS_SHA256: self.rows_sha256,
        }


def num_micro_batches(batch_size: int, micro_batch_size: int, num_ranks: int) -> int:
    """Into how many micro-batches every global batch is cut, so that each of ``num_ranks`` ranks has work.

    ``num_ranks`` is what the run asked for, never what it has at the moment.
    """
    needed = math.ceil(batch_size / micro_batch_size)
    return min(batch_size, math.ceil(needed / num_ranks) * num_ranks)


def lengths_of(rows: Dataset) -> Ints:
    """Tokens of every row, in the order of the rows; all 1 where rows have no tokens."""
    if LENGTH_COLUMN not in rows.column_names:
        return np.ones(len(rows), dtype=np.int64)
    tables = rows.with_format("arrow").select_columns([LENGTH_COLUMN]).iter(batch_size=10_000)
    found = [np.asarray(pc.list_value_length(table[LENGTH_COLUMN]), dtype=np.int64) for table in tables]
    return np.concatenate([np.empty(0, dtype=np.int64), *found])


def row_ids_of(rows: Dataset) -> npt.NDArray[Any]:
    """The row ids, in the order of the rows, in any format of the data set; their numbers where they have none."""
    if ROW_ID not in rows.column_names:
        return np.arange(len(rows))
    return np.asarray(rows.with_format("arrow").select_columns([ROW_ID])[:][ROW_ID])


def build_plan(
    rows: Dataset,
    *,
    seed: int,
    num_epochs: int,
    batch_size: int,
    micro_batch_size: int,
    num_micro_batches: int,
    world_size: int,
) -> Dataset:
    """The micro-batches of all epochs, rank by rank: first all of rank 0 in the order of its steps, then of rank 1.

    ``split_dataset_by_node`` gives rank r of a map-style data set its r-th block: exactly what that rank works on.
    An entry, when read, holds the rows themselves in ``features``; an empty one (its ``rows`` are empty) holds one
    row as filler, for a forward pass that counts nothing.
    """
    lengths = lengths_of(rows)
    cuts = cut_epochs(seed, range(num_epochs), lengths, batch_size, micro_batch_size, num_micro_batches)
    accumulation = math.ceil(num_micro_batches / world_size)
    assigned = [assign_to_ranks(cut, lengths, world_size, accumulation) for cut in cuts]
    blocks = [_block(cut, epoch, assigned[epoch][rank]) for rank in range(world_size) for epoch, cut in enumerate(cuts)]
    table = pa.concat_tables(blocks).combine_chunks()
    table = table.add_column(0, "position", pa.array(np.arange(len(table))))
    transform = _WithRows(rows, filler=int(np.argmin(lengths)))
    facts = PlanFacts(
        num_entries=len(table),
        num_rows=len(rows),
        num_epochs=num_epochs,
        steps_per_epoch=cuts[0].num_steps,
        accumulation=accumulation,
        world_size=world_size,
        seed=seed,
        batch_size=batch_size,
        micro_batch_size=micro_batch_size,
        rows_sha256=_sha256_of(transform.row_ids, lengths),
    )
    description = json.dumps({"plan": asdict(facts)})
    fingerprint = hashlib.sha256(f"{rows._fingerprint} {description}".encode()).hexdigest()
    plan = Dataset(InMemoryTable(table), info=DatasetInfo(description=description), fingerprint=fingerprint)
    return plan.with_transform(transform)


def _sha256_of(row_ids: npt.NDArray[Any], lengths: Ints) -> str:
    is_integer = row_ids.dtype.kind in "iu"
    ids = row_ids.astype(np.int64).tobytes() if is_integer else repr(row_ids.tolist()).encode()
    return hashlib.sha256(ids + lengths.tobytes()).hexdigest()


def _block(cut: EpochBatches, epoch: int, assigned: Ints) -> pa.Table:
    """One rank's entries of one epoch; ``assigned``: micro-batches, shape (steps, accumulation)."""
    micro = assigned.ravel()
    step = np.repeat(np.arange(len(assigned)), assigned.shape[1])
    first_micro = np.searchsorted(cut.step_of, np.arange(cut.num_steps))
    batch_rows = np.diff(np.append(cut.bounds[first_micro], len(cut.rows)))
    # A last, empty list is what EMPTY (-1) takes.
    lists = pa.LargeListArray.from_arrays(pa.array(np.append(cut.bounds, len(cut.rows))), pa.array(cut.rows))
    return pa.table(
        {
            "epoch": pa.array(np.full(micro.size, epoch)),
            "step": pa.array(epoch * cut.num_steps + step),
            "micro": pa.array(np.where(micro == EMPTY, EMPTY, micro - first_micro[step])),
            "batch_rows": pa.array(batch_rows[step]),
            "rows": lists.take(pa.array(micro % len(lists))),
        }
    )


class _WithRows:
    """Puts the rows themselves beside their positions when an entry of the plan is read."""

    def __init__(self, rows: Dataset, filler: int) -> None:
        self.rows, self.filler, self.row_ids = rows, filler, row_ids_of(rows)

    def __call__(self, entries: dict[str, list[Any]]) -> dict[str, list[Any]]:
        features = [self._with_ids(positions or [self.filler]) for positions in entries["rows"]]
        return {**entries, "features": features}

    def _with_ids(self, positions: list[int]) -> list[dict[str, Any]]:
        """A transform of the user's own may have left the ids out, or never had any."""
        features = features_of(self.rows, positions)
        ids = self.row_ids[positions].tolist()
        return [{**row, ROW_ID: row_id} for row_id, row in zip(ids, features, strict=True)]


@pklregister(_WithRows)  # type: ignore[untyped-decorator]
def _name_rows(pickler: Any, transform: _WithRows) -> None:
    """Of the pickler by which datasets names a transform: without it, each split of a plan pickles all its rows."""
    pickler.save_reduce(_WithRows, (transform.rows._fingerprint, transform.filler), obj=transform)


def features_of(rows: Dataset, positions: list[int]) -> list[dict[str, Any]]:
    """The rows at ``positions``, each as a dict of its columns."""
    columns = rows[positions]
    return [{name: values[i] for name, values in columns.items()} for i in range(len(positions))]


def facts_of(part: Any, taker: str = TRAINER) -> PlanFacts:
    """What the plan that ``part`` was taken of says about itself; ``taker``: what was given it.

    Raises:
        InvalidInput: when it is no part of a plan.
    """
    try:
        return PlanFacts(**json.loads(part.info.description)["plan"])
    except (AttributeError, TypeError, ValueError, KeyError):
        columns = f" with the columns {', '.join(part.column_names)}" if isinstance(part, Dataset) else ""
        raise InvalidInput(
            f"{taker} was given a {type(part).__name__}{columns}, which is no part of a plan: {GIVEN[taker]} is "
            "expected",
            cause="code",
        ) from None


def rows_of(part: Dataset, taker: str = TRAINER) -> Dataset:
    """The rows that the plan was made of. Raises InvalidInput when it does not bring them along."""
    transform = (part.format["format_kwargs"] or {}).get("transform")
    if not isinstance(transform, _WithRows):
        raise InvalidInput(
            f"The plan given to {taker} was put into the format {part.format['type']!r}, so it no longer brings its "
            f"rows along: leave it as it is, {GIVEN[taker]}",
            cause="code",
        )
    return transform.rows


def as_tensors(part: Dataset) -> Dataset:
    """The same part of a plan, whose rows, where they have no format of their own, are tensors; for a loop."""
    rows = rows_of(part, STEPS)
    if rows.format["type"] is not None:
        return part
    transform = part.format["format_kwargs"]["transform"]
    return part.with_transform(_WithRows(rows.with_format("torch"), transform.filler))


def positions_of(part: Dataset) -> Ints:
    """Where in the whole plan the entries of ``part`` stand."""
    return np.asarray(part.with_format("arrow").select_columns(["position"])[:]["position"], dtype=np.int64)
