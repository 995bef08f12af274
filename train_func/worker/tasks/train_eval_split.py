"""The rows of a task: reads them from the inputs, divides them into training and held-out rows, and stores them.

Every class keeps its share. The same seed chooses the same rows on every machine, with every version of numpy.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from train_func import tables as tables_module
from train_func.errors import InvalidInput
from train_func.storage import Store
from train_func.tasks import RowsTask
from train_func.text import counted
from train_func.worker.inputs.findings import Findings
from train_func.worker.inputs.locate import Reference, looks_like_path
from train_func.worker.inputs.reader import RawDataset, read_source
from train_func.worker.tasks.columns import judge_columns

if TYPE_CHECKING:
    from datasets import Dataset

TRAINING, HELD_OUT = "training", "held-out"
_SAMPLE, _HOLD_OUT = 1, 2  # streams of the run's seed
ROWS_AT_ONCE = 1000  # that are written
FACTS = "facts.json"


@dataclass(frozen=True)
class Sources:
    """The inputs with the rows of a task; their fingerprints are known before their tables are read."""

    read: Mapping[str, RawDataset]
    """The data sets by field of the task."""
    parts: Mapping[str, tuple[RawDataset, str]]
    """Data set and split of TRAINING, and of HELD_OUT unless it is a share of the training rows."""

    @property
    def fingerprints(self) -> dict[str, str]:
        return {field: source.fingerprint for field, source in self.read.items()}

    @property
    def tables(self) -> dict[str, pa.Table]:
        """The tables by part; the first use reads them."""
        return {part: source.splits[split] for part, (source, split) in self.parts.items()}

    def check_unchanged(self, cache: Path) -> None:
        """Raises InvalidInput if a file of this machine is not what its fingerprint says any more."""
        for source in self.read.values():
            if source.local:
                source.local.check_unchanged(cache)

    def having(self, *columns: str) -> dict[str, pa.Table]:
        """Returns the tables, by part, that have rows and these columns."""
        tables = self.tables
        return {part: table for part, table in tables.items() if table.num_rows and {*columns} <= {*table.column_names}}


def find_sources(task: RowsTask, store: Store | None, cache: Path, findings: Findings) -> Sources:
    """Finds the inputs of ``task.dataset`` and ``task.held_out``; a split takes precedence over a file of that name.

    Raises:
        InvalidInput: not found, unreadable, or no such split.
        StorageFailed: the store is away or denies.
    """
    columns = tuple(name for _, name in task.columns)
    dataset = Reference("dataset", str(task.dataset), "dataset", task.dataset_revision, columns)
    source = read_source(dataset, task.subset, store, cache)
    findings.note(*source.notes)
    read, training, held_out = {"dataset": source}, source.training(), task.held_out
    parts = {TRAINING: (source, training)}
    other_splits = [name for name in source.splits if name != training]
    if not isinstance(held_out, str):
        if other_splits:
            shown = ", ".join(f"{name!r} ({counted(source.splits[name].num_rows, 'row')})" for name in other_splits)
            findings.note(
                f"of {source.where} only the split {training!r} is used; held_out= may name another one: {shown}"
            )
    elif held_out in other_splits:
        parts[HELD_OUT] = source, held_out
    elif held_out != training and (looks_like_path(held_out) or Path(held_out).exists()):
        other = read_source(Reference("held_out", held_out, "dataset", "main", columns), None, store, cache)
        findings.note(*other.notes)
        read["held_out"] = other
        parts[HELD_OUT] = other, other.training()
    else:
        splits = f"one of its splits {', '.join(map(repr, other_splits))}, " if other_splits else ""
        raise InvalidInput(
            f"held_out={held_out!r}: {source.where} has no such split beside the one to train on, {training!r}, and no "
            f"such file is here; give {splits}a file, or a share such as 0.2",
            cause="data",
        )
    return Sources(read, parts)


def find_missing_columns(task: RowsTask, sources: Sources, findings: Findings) -> None:
    """Adds a fault for each part without rows, or without a column that the task reads."""
    for part, table in sources.tables.items():
        judge_columns(table, where(task, part), task.columns, findings)
        if not table.num_rows:
            findings.fault(f"{where(task, part)}: 0 rows; the {part} rows are expected there")


def where(task: RowsTask, part: str) -> str:
    """Returns the name of the rows of a part, TRAINING or HELD_OUT, in messages."""
    field, address = ("dataset", task.dataset) if part == TRAINING else ("held_out", task.held_out)
    if tables_module.is_one(str(address)):
        return f"{field}: the DataFrame or Dataset that was given (its rows are counted from 1, whatever its index)"
    return f"{field}={address!r}"


def stratified_sample(codes: np.ndarray, num: int, *, seed: int, stream: int, leave: int = 0) -> np.ndarray:
    """Returns the positions of ``num`` rows in ascending order, from each class in proportion.

    Args:
        codes: class of every row, 0, 1, ...
        seed: seed of the Run.
        stream: identifies one of several samples of a run.
        leave: number of rows of each class that are not drawn.
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
    """Returns how many of ``num`` rows come from each class: in proportion, at least one if there are enough.

    The sum is ``num``, or all rows that may be drawn if they are fewer.
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


@dataclass(frozen=True)
class TrainEvalSplit:
    """The rows of both sides, with the columns that the task encodes, and ``row_id``."""

    sources: Sources
    train: pa.Table
    held_out: pa.Table
    held_rows: np.ndarray
    """Positions of the held-out rows in their input."""
    labels: tuple[str, ...] = ()
    """Names of the classes, in the order of their numbers; empty if there are none."""
    first_held_out: int | None = None
    """The row_id of the first held-out row, if the held-out rows have a file or split of their own."""


def divide(
    task: RowsTask,
    seed: int,
    sources: Sources,
    tables: Mapping[str, pa.Table],
    findings: Findings,
    *,
    strata: Mapping[str, np.ndarray] | None = None,
    labels: tuple[str, ...] = (),
    each_stratum: bool = False,
) -> TrainEvalSplit:
    """Chooses the rows of both sides, so that every stratum keeps its share.

    Args:
        tables: rows by part, made of ``sources``.
        strata: stratum of every row, 0, 1, ..., by part; None: all rows are one stratum.
        each_stratum: whether both sides need a row of each stratum.

    Raises:
        InvalidInput: there are too few rows.
    """
    strata = strata or {part: np.zeros(table.num_rows, dtype=np.int64) for part, table in tables.items()}
    is_own_part = HELD_OUT in tables
    choose = _rows_of_parts if is_own_part else _rows_by_share
    train_rows, held_rows = choose(task, seed, strata, len(np.unique(strata[TRAINING])) if each_stratum else 1)
    num_rows = sum(table.num_rows for table in tables.values())
    if task.samples is not None and task.samples > num_rows:
        findings.note(f"samples={task.samples}: there are {num_rows} rows, and all are used")
    first_held_out = tables[TRAINING].num_rows if is_own_part else None
    train = tables[TRAINING].take(pa.array(train_rows)).append_column("row_id", pa.array(train_rows))
    held_out = tables[HELD_OUT if is_own_part else TRAINING].take(pa.array(held_rows))
    held_out = held_out.append_column("row_id", pa.array(held_rows + (first_held_out or 0)))
    return TrainEvalSplit(sources, train, held_out, held_rows, labels, first_held_out)


def _rows_by_share(
    task: RowsTask, seed: int, strata: Mapping[str, np.ndarray], least: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the positions of the rows to train on and to hold out; ``least``: how many each side needs."""
    codes, share, samples = strata[TRAINING], task.held_out, task.samples
    assert not isinstance(share, str)  # its rows are a part of their own
    used = np.arange(len(codes))
    if samples is not None:
        used = stratified_sample(codes, samples, seed=seed, stream=_SAMPLE)
    num_used, num_held = len(used), round(len(used) * share)
    if num_used < 2 * least:
        rows = f"samples={samples}" if num_used < len(codes) else f"{where(task, TRAINING)}: {len(codes)} rows"
        raise InvalidInput(
            f"{rows}: at least {2 * least} rows are expected, one{_of_each(least)} to train and one held out",
            cause="data",
        )
    if not least <= num_held <= num_used - least:
        raise InvalidInput(
            f"held_out={share}: {num_held} of {num_used} rows held out, {num_used - num_held} to train on; one "
            f"row{_of_each(least)} is expected on both sides: give another share, or more rows",
            cause="data",
        )
    leave = int(num_held <= num_used - len(np.unique(codes[used])))  # else some rows are the only ones of their class
    places = stratified_sample(codes[used], num_held, seed=seed, stream=_HOLD_OUT, leave=leave)
    return np.delete(used, places), used[places]


def _of_each(least: int) -> str:
    """Returns the words " of each of the n classes" for messages; empty if there is one."""
    return f" of each of the {least} classes" if least > 1 else ""


def _rows_of_parts(
    task: RowsTask, seed: int, strata: Mapping[str, np.ndarray], least: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the positions of all rows of two parts, or of ``samples`` rows of both together."""
    train, held_out, samples = strata[TRAINING], strata[HELD_OUT], task.samples
    total = len(train) + len(held_out)
    if samples is None or samples >= total:
        return np.arange(len(train)), np.arange(len(held_out))
    num_held = round(samples * len(held_out) / total)
    num_train = samples - num_held
    if min(num_held, num_train) < least:
        raise InvalidInput(
            f"samples={samples}: divided as the two splits are, {len(train)} to {len(held_out)}, that is {num_train} "
            f"rows to train on and {num_held} held out; one{_of_each(least)} is expected on both sides: give "
            "more samples",
            cause="data",
        )
    return (
        stratified_sample(train, num_train, seed=seed, stream=_SAMPLE),
        stratified_sample(held_out, num_held, seed=seed, stream=_SAMPLE),
    )


@dataclass(frozen=True)
class SplitFiles:
    """The rows of both sides in files that are mapped into memory, so that unused rows take none."""

    train: "Dataset"
    held_out: "Dataset"
    labels: tuple[str, ...]
    first_held_out: int | None
    notes: Sequence[str]

    @classmethod
    def load(cls, folder: Path) -> "SplitFiles":
        """Returns the rows that ``write_split`` wrote; raises ValueError if they are not whole."""
        from datasets import Dataset
        from datasets.table import MemoryMappedTable

        facts = json.loads((folder / FACTS).read_text())
        train, held_out = (
            Dataset(MemoryMappedTable.from_file(str(folder / f"{side}.arrow")), fingerprint=facts["sha256"][side][:32])
            for side in (TRAINING, HELD_OUT)
        )
        return cls(train, held_out, tuple(facts["labels"]), facts["first_held_out"], facts["notes"])


def write_split(data: TrainEvalSplit, notes: Sequence[str], folder: Path) -> None:
    """Writes the rows of both sides and their notes to a new folder."""
    folder.mkdir()
    sums = {}
    for side, table in ((TRAINING, data.train), (HELD_OUT, data.held_out)):
        path = folder / f"{side}.arrow"
        with pa.ipc.new_stream(str(path), table.schema) as writer:
            writer.write_table(table, max_chunksize=ROWS_AT_ONCE)
        with path.open("rb") as file:
            sums[side] = hashlib.file_digest(file, "sha256").hexdigest()
    facts = {"labels": data.labels, "first_held_out": data.first_held_out, "notes": [*notes], "sha256": sums}
    (folder / FACTS).write_text(json.dumps(facts))
