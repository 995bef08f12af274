"""The plan: which rows form each step of each epoch, and which rank works on them.

- A global batch, and the micro-batches it is cut into, depend on the seed, the epoch, the lengths of the rows and the
  batch size alone. The world size only decides which rank works on which micro-batch, so a run of any number of ranks,
  or one whose number changes, has the same steps.
- The work of a micro-batch is counted in tokens after padding, the work of a matrix product. Rows of similar length
  meet in a batch, a batch is cut such that its costliest micro-batch is as cheap as can be, and each rank gets a run
  of neighbours (see sums), such that the rank with the most to do has as little as can be. All of it is arithmetic on
  arrays.
- Every rank has the same number of micro-batches in a step, ``accumulation``. Where a small batch has too few, a rank
  gets an empty one, whose one row is a filler that counts nothing: a loop of one's own may exchange what it likes.
- Users see the plan as a data set, which they split once over the ranks with ``split_dataset_by_node``. An entry of it
  is a place in an epoch: first all of rank 0 in the order of its steps, then those of rank 1. Its number is all that is
  stored; the audit reads the numbers to see what was done to the plan. The ``Plan`` itself travels as the transform of
  the data set, through every split, shuffle or select.
- The rows of an entry are known when the loader asks for it in an epoch: epochs are cut when they begin, so memory and
  time of a plan do not grow with them.
"""

import hashlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset
from datasets.table import InMemoryTable
from datasets.utils._dill import pklregister

from train_func.errors import InvalidInput

Ints = npt.NDArray[np.int64]
Starts = npt.NDArray[np.bool_]

WINDOW = (8, 32)  # global batches whose rows are sorted by length together, at least and at most
NUM_WINDOWS = 4  # of an epoch, between these bounds: in fewer the same rows would meet in every epoch
TOKENS_ON_CPU = 640  # of a micro-batch, on average; the products of fewer are slower, of more not faster
NO_TOKENS = 80  # what the work of a row without tokens counts, as of an image: micro-batches have 8 of them
EMPTY = -1
CUT_AT_ONCE = 1 << 16  # rows: short epochs are cut several at a time, because the calls cost more than the work


@dataclass(frozen=True)
class EpochBatches:
    """One epoch: micro-batch ``i`` holds ``rows[bounds[i]:bounds[i + 1]]`` and belongs to step ``step_of[i]``."""

    rows: Ints
    """Positions of all rows, each once, in the order of their use."""
    bounds: Ints
    step_of: Ints
    """Number of the step, from 0, per epoch; micro-batches of one step stand together."""

    @property
    def num_steps(self) -> int:
        return int(self.step_of[-1]) + 1


def cut_epochs(
    seed: int, epochs: Iterable[int], lengths: Ints, batch_size: int, micro_batch_size: int, num_micro_batches: int
) -> list[EpochBatches]:
    """Cuts each epoch into global batches of ``batch_size`` rows, the last one smaller, and these into micro-batches.

    A batch of fewer rows than ``num_micro_batches`` gives one micro-batch per row.
    """
    batches = [_batches(seed, epoch, lengths, batch_size) for epoch in epochs]
    starts = [
        _starts(lengths[np.concatenate(of_epochs)], micro_batch_size, min(num_micro_batches, of_epochs[0].shape[1]))
        for of_epochs in zip(*batches, strict=True)
    ]
    per_epoch = zip(*(np.split(start, len(batches)) for start in starts), strict=True)
    step_of = np.arange(len(lengths)) // batch_size
    cuts = []
    for blocks, of_epoch in zip(batches, per_epoch, strict=True):
        first = np.concatenate([start.ravel() for start in of_epoch])
        rows = np.concatenate([block.ravel() for block in blocks])
        cuts.append(EpochBatches(rows, np.append(np.flatnonzero(first), len(rows)), step_of[first]))
    return cuts


def _batches(seed: int, epoch: int, lengths: Ints, batch_size: int) -> list[Ints]:
    """Returns the full batches of an epoch, shape (batches, batch_size), and the one of what is left, if there are any.

    Rows of similar length meet in a batch: a random order is sorted by length within windows, and the batches are
    shuffled again.
    """
    random = np.random.default_rng([seed, epoch])
    order = random.permutation(len(lengths))
    num_full, num_left = divmod(len(lengths), batch_size)
    left, full = order[:num_left], order[num_left:]
    window = min(max(num_full // NUM_WINDOWS, WINDOW[0]), WINDOW[1]) * batch_size
    windows = [full[start : start + window] for start in range(0, len(full), window)]
    batches = np.concatenate([full[:0], *(rows[np.argsort(-lengths[rows], kind="stable")] for rows in windows)])
    blocks = [batches.reshape(num_full, batch_size)[random.permutation(num_full)]] if num_full else []
    return [*blocks, left[np.argsort(-lengths[left], kind="stable")][None]] if num_left else blocks


def _starts(lengths: Ints, micro_batch_size: int, num_parts: int) -> Starts:
    """Returns True where a micro-batch starts in batches (rows of ``lengths``, descending).

    Every batch is cut into exactly ``num_parts`` parts, the costliest of which is as cheap as can be.
    """
    within = partial(_cut_within, lengths, micro_batch_size=micro_batch_size, num_parts=num_parts)
    one_row = lengths[:, 0]  # the cost of a part of the longest row alone
    return _cheapest(within, num_parts, one_row, one_row * micro_batch_size)


def _cheapest(within: Callable[[Ints], Starts], num_parts: int, low: Ints, high: Ints) -> Starts:
    """Returns the starts ``within`` the lowest limit, from ``low`` to ``high``, that allows ``num_parts`` parts."""
    while (low < high).any():
        limit = (low + high) // 2
        fits = within(limit).sum(axis=1) <= num_parts
        low, high = np.where(fits, low, np.minimum(limit + 1, high)), np.where(fits, limit, high)
    return within(high)


def _cut_within(lengths: Ints, limit: Ints, micro_batch_size: int, num_parts: int) -> Starts:
    num_batches, num_rows = lengths.shape
    starts = np.zeros((num_batches, num_rows), dtype=bool)
    starts[:, 0] = True
    longest, size, used = lengths[:, 0], np.ones(num_batches, dtype=np.int64), np.ones(num_batches, dtype=np.int64)
    for row in range(1, num_rows):
        too_much = (size == micro_batch_size) | ((size + 1) * longest > limit)
        opens = too_much | (num_rows - row == num_parts - used)  # as many rows left as parts: one each
        starts[:, row] = opens
        longest, size, used = np.where(opens, lengths[:, row], longest), np.where(opens, 1, size + 1), used + opens
    return starts


def costs_of(cut: EpochBatches, lengths: Ints) -> Ints:
    """Counts the tokens of every micro-batch after padding."""
    longest = np.maximum.reduceat(lengths[cut.rows], cut.bounds[:-1])
    return longest * np.diff(cut.bounds)


def assign_to_ranks(cut: EpochBatches, lengths: Ints, world_size: int, accumulation: int) -> Ints:
    """Assigns micro-batches to ranks: shape (world_size, steps, accumulation), EMPTY where there is none.

    Each rank gets a run of neighbours, the costliest run is as cheap as can be, and no rank is without work while there
    are as many micro-batches as ranks. Empty ones stand last in their step.
    """
    costs = costs_of(cut, lengths)
    counts = np.bincount(cut.step_of)
    first = np.cumsum(counts) - counts
    assigned = np.full((world_size, cut.num_steps, accumulation), EMPTY, dtype=np.int64)
    for count in np.unique(counts):  # of whole batches, and of the last one
        steps, numbers = np.flatnonzero(counts == count), np.arange(count)
        micro = first[steps][:, None] + numbers
        of_steps = costs[micro]
        within = partial(_runs_within, of_steps, num_runs=world_size, most=accumulation)
        starts = _cheapest(within, world_size, of_steps.max(axis=1), of_steps.sum(axis=1))
        place = numbers - np.maximum.accumulate(np.where(starts, numbers, 0), axis=1)
        assigned[starts.cumsum(axis=1) - 1, steps[:, None], place] = micro
    return assigned


def _runs_within(costs: Ints, limit: Ints, num_runs: int, most: int) -> Starts:
    """Returns True where a run starts in steps (a row of ``costs`` each), of at most ``most`` micro-batches."""
    num_steps, num_micro = costs.shape
    starts = np.zeros(costs.shape, dtype=bool)
    starts[:, 0] = True
    load, size, used = costs[:, 0], np.ones(num_steps, dtype=np.int64), np.ones(num_steps, dtype=np.int64)
    for micro in range(1, num_micro):
        opens = (size == most) | (load + costs[:, micro] > limit) | (num_micro - micro <= num_runs - used)
        starts[:, micro] = opens
        load = np.where(opens, 0, load) + costs[:, micro]
        size, used = np.where(opens, 1, size + 1), used + opens
    return starts


CALL = "split_dataset_by_node(session.plan(train), session.rank, session.world_size)"
TRAINER, STEPS = "Trainer", "session.steps"  # what a plan is given to, as messages name it
GIVEN = {TRAINER: f"train_dataset={CALL}", STEPS: f"session.steps({CALL})"}
ROW_ID = "row_id"
LENGTH_COLUMN = "input_ids"
ROWS_SHA256 = "rows_sha256"
POSITION = "position"  # the one column of a plan


@dataclass(frozen=True)
class PlanFacts:
    """What a plan says about itself; every part taken of it says the same."""

    num_rows: int
    num_epochs: int
    steps_per_epoch: int
    accumulation: int
    """Micro-batches of one rank for one step."""
    world_size: int
    seed: int
    batch_size: int
    num_micro_batches: int
    """Into which a global batch is cut."""
    micro_batch_size: int
    """Most rows of one of them."""
    rows_sha256: str
    """Hash of the row ids, in the order of the rows, and of the rows' lengths."""

    @property
    def num_entries(self) -> int:
        """Micro-batches of an epoch over all ranks, the empty ones included."""
        return self.world_size * self.steps_per_epoch * self.accumulation

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


def lengths_of(rows: Dataset) -> Ints:
    """Counts the tokens of every row, in the order of the rows; all ``NO_TOKENS`` where rows have none."""
    if LENGTH_COLUMN not in rows.column_names:
        return np.full(len(rows), NO_TOKENS, dtype=np.int64)
    tables = rows.with_format("arrow").select_columns([LENGTH_COLUMN]).iter(batch_size=10_000)
    lengths = [np.asarray(pc.list_value_length(table[LENGTH_COLUMN]), dtype=np.int64) for table in tables]
    return np.concatenate([np.empty(0, dtype=np.int64), *lengths])


def row_ids_of(rows: Dataset) -> npt.NDArray[Any]:
    """Returns the row ids in the order of the rows, in any format of the data set; without ids, the numbers of rows."""
    if ROW_ID not in rows.column_names:
        return np.arange(len(rows))
    return np.asarray(rows.with_format("arrow").select_columns([ROW_ID])[:][ROW_ID])


@dataclass(frozen=True)
class Place:
    """Which micro-batch a batch is."""

    step: int
    """Step of the run, from 0."""
    micro: int
    """Its number in the global batch, or EMPTY."""
    batch_rows: int
    """Rows of the global batch."""
    row_ids: tuple[Any, ...]
    """Ids of the rows of this micro-batch; none where its one row only fills it."""


class Plan:
    """The plan of a run over its rows, and what each of its entries holds in an epoch."""

    def __init__(self, rows: Dataset, lengths: Ints, facts: PlanFacts) -> None:
        self.rows, self.facts = rows, facts
        self._row_ids, self._lengths = row_ids_of(rows), lengths
        self._filler = int(np.argmin(lengths))
        self._epochs: dict[int, tuple[EpochBatches, Ints]] = {}
        """The epochs that were cut last, and the micro-batch of each entry in them."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "Plan":
        return self  # datasets copies formats, and all rows with this one

    def __call__(self, entries: dict[str, list[Any]]) -> dict[str, list[Any]]:
        return entries  # as a transform it changes nothing: see above

    def entry(self, epoch: int, position: int, rows: Dataset) -> tuple[Place, list[dict[str, Any]]]:
        """Returns the place and the rows of an entry in an epoch; ``rows``: those of the plan, in any format."""
        facts = self.facts
        if epoch not in self._epochs:
            end = min(facts.num_epochs, epoch + max(1, CUT_AT_ONCE // facts.num_rows))
            given = (self._lengths, facts.batch_size, facts.micro_batch_size, facts.num_micro_batches)
            self._epochs = {
                number: (of, assign_to_ranks(of, self._lengths, facts.world_size, facts.accumulation).ravel())
                for number, of in enumerate(cut_epochs(facts.seed, range(epoch, end), *given), start=epoch)
            }
        cut, assigned = self._epochs[epoch]
        micro = int(assigned[position])
        step = position // facts.accumulation % facts.steps_per_epoch
        is_empty = micro == EMPTY
        of_rows = [self._filler] if is_empty else cut.rows[cut.bounds[micro] : cut.bounds[micro + 1]].tolist()
        place = Place(
            step=epoch * facts.steps_per_epoch + step,
            micro=EMPTY if is_empty else micro - int(np.searchsorted(cut.step_of, step)),
            batch_rows=min(facts.batch_size, facts.num_rows - step * facts.batch_size),
            row_ids=() if is_empty else tuple(self._row_ids[of_rows].tolist()),
        )
        features = features_of(rows, of_rows)
        for feature in features:
            feature.pop(ROW_ID, None)
        return place, features


@pklregister(Plan)  # type: ignore[untyped-decorator]
def _name_plan(pickler: Any, plan: Plan) -> None:
    """Tells the pickler by which datasets names a transform what names a plan: else each split pickles all its rows."""
    pickler.save_reduce(Plan, (plan.rows._fingerprint, repr(plan.facts)), obj=plan)


def build_plan(
    rows: Dataset,
    lengths: Ints,
    *,
    seed: int,
    num_epochs: int,
    batch_size: int,
    micro_batch_size: int,
    num_micro_batches: int,
    world_size: int,
) -> Dataset:
    """Returns the plan as a data set of the entries of an epoch, rank by rank.

    ``split_dataset_by_node`` gives rank r of a map-style data set its r-th block: exactly what that rank works on.
    """
    row_ids = row_ids_of(rows)
    ids = row_ids.astype(np.int64).tobytes() if row_ids.dtype.kind in "iu" else repr(row_ids.tolist()).encode()
    facts = PlanFacts(
        num_rows=len(rows),
        num_epochs=num_epochs,
        steps_per_epoch=math.ceil(len(rows) / batch_size),
        accumulation=math.ceil(num_micro_batches / world_size),
        world_size=world_size,
        seed=seed,
        batch_size=batch_size,
        num_micro_batches=num_micro_batches,
        micro_batch_size=micro_batch_size,
        rows_sha256=hashlib.sha256(ids + lengths.tobytes()).hexdigest(),
    )
    table = pa.table({POSITION: np.arange(facts.num_entries)})
    fingerprint = hashlib.sha256(f"{rows._fingerprint} {facts}".encode()).hexdigest()
    entries = Dataset(InMemoryTable(table), fingerprint=fingerprint)
    return entries.with_transform(Plan(rows, lengths, facts))


def features_of(rows: Dataset, positions: list[int]) -> list[dict[str, Any]]:
    """Returns the rows at ``positions``, each as a dict of its columns."""
    columns = rows[positions]
    return [{name: values[i] for name, values in columns.items()} for i in range(len(positions))]


def plan_of(part: Any, taker: str = TRAINER) -> Plan:
    """Returns the plan that ``part`` was taken of; ``taker``: what was given it.

    Raises:
        InvalidInput: when it is no part of a plan, or was put into another format.
    """
    if not isinstance(part, Dataset):
        description = ""
    elif isinstance(plan := (part.format["format_kwargs"] or {}).get("transform"), Plan):
        return plan
    elif part.column_names == [POSITION]:
        raise InvalidInput(
            f"The plan given to {taker} was put into the format {part.format['type']!r}, so it no longer brings its "
            f"rows along: leave it as it is, {GIVEN[taker]}",
            cause="code",
        )
    else:
        description = f" with the columns {', '.join(part.column_names)}"
    raise InvalidInput(
        f"{taker} was given a {type(part).__name__}{description}, which is no part of a plan: {GIVEN[taker]} is "
        "expected",
        cause="code",
    )


def facts_of(part: Any, taker: str = TRAINER) -> PlanFacts:
    """Returns the facts of the plan that ``part`` was taken of. Raises InvalidInput as ``plan_of``."""
    return plan_of(part, taker).facts


def rows_of(part: Dataset, taker: str = TRAINER) -> Dataset:
    """Returns the rows that the plan was made of. Raises InvalidInput as ``plan_of``."""
    return plan_of(part, taker).rows


def positions_of(part: Dataset) -> Ints:
    """Returns where in the whole plan the entries of ``part`` stand."""
    return np.asarray(part.with_format("arrow").select_columns([POSITION])[:][POSITION], dtype=np.int64)
