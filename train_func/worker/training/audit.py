"""The audit: every rank is given the same rows, and all ranks together use each row of an epoch exactly once.

What goes wrong here raises no error anywhere else: a data set that was split twice trains on a part of its rows, one
that was shuffled on each rank uses some twice and others never, and the loss falls all the same. So the audit looks at
what is used, by the ids of the rows, and not at how it was made:

- Before a plan is made and before an evaluation, the ranks compare the rows that each was given. Ids are compared one
  by one. Rows without ids, as a loop of one's own may have, are compared by their number, their columns and the bytes
  of some rows spread over the set, at a cost that neither their number nor their size raises. That finds an order that
  was drawn on each rank, and not one row that differs.
- Before the first step, each rank's part of the plan has to be a block of it, whole and in order. Where it is not, the
  positions tell what was done instead: ``pattern_of`` tries the ways in which libraries split a data set, and the error
  names the call that is one too many.
- After every epoch, the ids that the training steps have noted are counted over all ranks, and the run fails where a
  row was used twice or never: a subclass of Trainer may leave steps out.

The ``_fingerprint`` of a data set decides nothing here: it names the files and functions that rows come from. One file
in two caches has two of them, and a function that draws at random has one on all ranks.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
from datasets import Dataset

from train_func.errors import InvalidInput
from train_func.text import listed
from train_func.wire.events import RowsAudited
from train_func.worker.rank import world
from train_func.worker.training.plan import (
    CALL,
    GIVEN,
    ROW_ID,
    ROWS_SHA256,
    TRAINER,
    PlanFacts,
    positions_of,
    row_ids_of,
)

if TYPE_CHECKING:
    from train_func.worker.checkpoint.checkpointing import Resumption

NUM_SAMPLED = 256  # rows whose bytes are compared, at most
SAMPLED_BYTES = 64 * 2**20  # in those rows together, about: of large rows fewer are compared

RowIds: TypeAlias = npt.NDArray[Any]
Part: TypeAlias = Callable[[RowIds, int, int], RowIds]


@dataclass(frozen=True)
class Coverage:
    """Says how often rows were used that should be used once."""

    num_rows: int
    missing: RowIds
    repeated: RowIds
    strange: RowIds
    """Ids that belong to none of the rows."""

    @property
    def num_once(self) -> int:
        return self.num_rows - len(self.missing) - len(self.repeated)

    @property
    def exact(self) -> bool:
        """Tells whether every row was used once, and nothing else."""
        return not (len(self.missing) or len(self.repeated) or len(self.strange))

    def counts(self, once: str) -> dict[str, int]:
        """Returns the numbers as they are printed and published; ``once`` names those used exactly once."""
        return {
            "rows": self.num_rows,
            once: self.num_once,
            "missing": len(self.missing),
            "repeated": len(self.repeated),
        }

    def __str__(self) -> str:
        text = f"of {self.num_rows} rows {self.num_once} once"
        for ids, what in ((self.missing, "never"), (self.repeated, "more than once"), (self.strange, "unknown here")):
            if len(ids):
                text += f", {len(ids)} {what} (row ids {listed(ids.tolist())})"
        return text


def published(coverage: Sequence[Coverage]) -> dict[str, Any]:
    """Returns the audit as it is published, of epochs that were gone through to their ends."""
    return {"world_size": world.size(), "training": [of.counts("used_once") for of in coverage]}


def count(expected: RowIds, used: Sequence[RowIds]) -> Coverage:
    """Counts how the rows ``expected`` were used, given the ids each rank has used."""
    ids, times = np.unique(np.concatenate([expected[:0], *used]), return_counts=True)
    return Coverage(
        num_rows=len(expected),
        missing=np.setdiff1d(expected, ids),
        repeated=np.intersect1d(ids[times > 1], expected),
        strange=np.setdiff1d(ids, expected),
    )


def _block(ids: RowIds, rank: int, world_size: int) -> RowIds:
    return np.array_split(ids, world_size)[rank]


def _stride(ids: RowIds, rank: int, world_size: int) -> RowIds:
    return ids[rank::world_size]


BLOCKS = "split_dataset_by_node, shard or select of one block per rank"
STRIDES = "shard(contiguous=False), select(range(rank, n, world_size)) or Accelerate's prepare"
WHOLE, ONCE = "all of it on every rank", f"a block for each rank ({BLOCKS})"

# What ranks may have been given, tried in this order.
PATTERNS: tuple[tuple[str, tuple[Part, ...]], ...] = (
    (WHOLE, ()),
    (ONCE, (_block,)),
    (f"every n-th for each rank ({STRIDES})", (_stride,)),
    (f"split twice, into blocks and again into blocks ({BLOCKS})", (_block, _block)),
    (f"split twice, into blocks ({BLOCKS}) and then every n-th ({STRIDES})", (_block, _stride)),
    (f"split twice, every n-th ({STRIDES}) and then into blocks ({BLOCKS})", (_stride, _block)),
    (f"split twice, every n-th and again every n-th ({STRIDES})", (_stride, _stride)),
)


def pattern_of(whole: RowIds, parts: Sequence[RowIds]) -> str:
    """Returns how ``whole`` was split so that rank r was given ``parts[r]``, in any order."""
    for name, splits in PATTERNS:
        expected = [whole] * len(parts)
        for split in splits:
            expected = [split(ids, rank, len(parts)) for rank, ids in enumerate(expected)]
        if all(map(_same_set, parts, expected)):
            return name
    if all(_same_set(part, parts[0]) for part in parts):
        return f"the same {len(parts[0])} of {len(whole)} on every rank (the rank in the split is not session.rank)"
    sizes = ", ".join(f"{len(part)} on rank {rank}" for rank, part in enumerate(parts))
    return f"split by hand, select or filter, differently on the ranks ({sizes}, of {len(whole)})"


def _same_set(ids: RowIds, expected: RowIds) -> bool:
    return np.array_equal(np.sort(ids), np.sort(expected))


def check_plan_part(part: Dataset, facts: PlanFacts, taker: str = TRAINER) -> None:
    """Collective, before step one: every rank has its block of the plan, whole and in order; ``taker`` was given it.

    Raises:
        InvalidInput: (cause "code", on every rank) naming what was done to the plan instead.
    """
    parts = world.gather(positions_of(part))
    whole = np.arange(facts.num_entries)
    blocks = np.split(whole, facts.world_size)
    by_start = sorted(parts, key=lambda part: part[:1].tolist())  # any rank may have any block
    if len(parts) == facts.world_size and all(map(np.array_equal, by_start, blocks)):
        return
    pattern = pattern_of(whole, parts)
    if pattern == WHOLE and len(parts) > 1:
        pattern += ", so it was not split"
    elif pattern in (WHOLE, ONCE):
        pattern = "not in its order any more (shuffle or sort)"
    raise InvalidInput(
        f"{taker} was given the plan as it must not be: {pattern}. A plan is split once, and nothing else is done to "
        f"it: {GIVEN[taker]}",
        cause="code",
    )


def check_same_plan(restored: "Resumption", facts: PlanFacts, taker: str = TRAINER) -> None:
    """Refuses a checkpoint that was saved with another plan: the steps would use other rows, or end at once.

    Args:
        restored: what ``taker`` goes on from, with the identity of the plan that it was saved with.
        facts: of the plan now.
        taker: was given the plan.

    Raises:
        InvalidInput: (cause "code") naming what differs.
    """
    saved: Mapping[str, int | str] = restored.training["plan"]
    now = facts.identity
    differing = [name for name in now if saved[name] != now[name]]
    if not differing:
        return
    differences = [f"{name} {saved[name]}, now {now[name]}" for name in differing if name != ROWS_SHA256]
    if ROWS_SHA256 in differing:
        differences.append("other row ids, another order of the rows or other lengths of input_ids")
    anew = "with fresh=True" if restored.is_own else "without resume"
    error = InvalidInput(
        f"{taker} goes on from the checkpoint of step {restored.step} of {restored.run}, which was saved with another "
        f"plan: {'; '.join(differences)}. Give {taker} the same plan: the same rows in the same order, and a Run with "
        f"the same batch_size, epochs and seed. Or submit {anew}, which trains from the beginning",
        cause="code",
    )
    error.checkpoints_of = restored.run
    raise error


def check_rows_alike(rows: Dataset, whole: RowIds | None, what: str) -> RowIds:
    """Collective: every rank was given the same rows in the same order; returns their ids.

    ``whole``: the ids of all rows there are, when known. Fewer, the same on all ranks, are allowed; a note says so.

    Raises:
        InvalidInput: (cause "code", on every rank) when ranks were given different rows.
    """
    ids = world.on_all_ranks(lambda: _ids(rows, what))
    digest = hashlib.sha256(ids.tobytes() if ids.dtype.kind in "iu" else repr(ids.tolist()).encode()).hexdigest()
    if world.size() > 1 and not all(world.gather(ROW_ID in rows.column_names)):
        _check_samples_alike(rows, what)
    elif len(set(world.gather(digest))) > 1:
        parts = world.gather(ids)
        if whole is None:  # all ids, each once, in the order of the ranks
            whole = np.asarray(list(dict.fromkeys(np.concatenate(parts).tolist())))
        pattern = pattern_of(whole, parts)
        if pattern == WHOLE:
            pattern = "in a different order on every rank (shuffle without a fixed seed)"
        raise InvalidInput(
            f"The ranks were given different {what} rows: {pattern}. Leave these rows whole on every rank; nothing but "
            f"the plan is split, and once: {CALL}",
            cause="code",
        )
    if whole is not None and len(ids) < len(whole):
        world.note(f"{len(ids)} of the {len(whole)} {what} rows are used")
    return ids


def _check_samples_alike(rows: Dataset, what: str) -> None:
    size = max(1, rows.data.nbytes // max(1, rows.data.num_rows))  # differs a little between two caches
    most = min(NUM_SAMPLED, *world.gather(max(2, SAMPLED_BYTES // size)))

    def sample() -> tuple[int, dict[str, str], dict[int, str]]:
        """The number of the rows, their columns, and digests of some rows, by position, as they are stored."""
        positions = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), most)).astype(np.int64))
        table = rows.with_format("arrow")[positions.tolist()]  # no transform is called, and no column is copied
        batches = table.select(sorted(table.column_names)).to_batches(max_chunksize=1)
        digests = [hashlib.sha256(batch.serialize()).hexdigest() for batch in batches]
        columns = {name: repr(kind) for name, kind in rows.features.items()}
        return len(rows), columns, dict(zip(positions.tolist(), digests, strict=True))

    samples = world.gather(world.on_all_ranks(sample))
    _, columns, digests = samples[0]
    if len({num for num, _, _ in samples}) > 1:
        difference = ", ".join(f"{num} on rank {rank}" for rank, (num, _, _) in enumerate(samples))
    elif other := next((rank for rank, (_, names, _) in enumerate(samples) if names != columns), None):
        names = listed(sorted({name for name, _ in columns.items() ^ samples[other][1].items()}))
        difference = f"columns of other names or types on rank {other} than on rank 0: {names}"
    elif other := next((rank for rank, sample in enumerate(samples) if sample != samples[0]), None):
        position = min(at for at, digest in digests.items() if samples[other][2][at] != digest)
        difference = f"other rows, or another order, on rank {other} than on rank 0, as at position {position}"
    else:
        return
    raise InvalidInput(
        f"The ranks were given different {what} rows ({difference}): leave these rows whole, and in one order, on "
        "every rank; they are dealt over the ranks where they are used",
        cause="code",
    )


def _ids(rows: Dataset, what: str) -> RowIds:
    if isinstance(rows, Dataset) and len(rows):
        ids = row_ids_of(rows)
        if ROW_ID not in rows.column_names or len(np.unique(ids)) == len(ids):
            return ids
        fault = f"have the same {ROW_ID} more than once, by which their use is counted: leave that column out"
    elif isinstance(rows, Dataset):
        fault = "are none: there is nothing to train on"
    else:
        ways = "Dataset.from_generator(lambda: stream), or of a list of dicts Dataset.from_list(rows)"
        fault = f"are a {type(rows).__name__}, which has no rows by number: make them a datasets.Dataset, as by {ways}"
    raise InvalidInput(f"The {what} rows {fault}", cause="code")


def check_epoch(epoch: int, expected: RowIds, used: RowIds) -> Coverage:
    """Collective, after an epoch (from 1): ``used`` by this rank's training steps, on all ranks every row once.

    Raises:
        InvalidInput: (cause "code", on every rank) when it is not so.
    """
    coverage = count(expected, world.gather(used))
    counts = coverage.counts("used_once")
    world.log_rank0(RowsAudited(what=f"epoch={epoch}", counts=counts, world_size=world.size()))
    if not coverage.exact:
        raise InvalidInput(
            f"Epoch {epoch} did not use every training row once: {coverage}. Something between the plan and the "
            "training step (such as a subclass of Trainer) leaves rows out or repeats them",
            cause="code",
        )
    return coverage
