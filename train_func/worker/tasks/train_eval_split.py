"""Reads the rows of a run, checks them, and divides them into training and held-out ones, as Arrow tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

from train_func.counted import counted
from train_func.errors import InvalidInput
from train_func.storage import Store
from train_func.worker.inputs.locate import LocalFiles, Wanted, looks_like_path
from train_func.worker.inputs.reader import Source, class_names, read_source
from train_func.worker.tasks.columns import missing_column
from train_func.worker.tasks.labels import Labels, encode
from train_func.worker.tasks.stratified_sample import choose_rows
from train_func.worker.tasks.texts import contradictions, overlap, plain, text_faults

TRAINING, HELD_OUT = "training", "held-out"


class LabelledRows(Protocol):
    """The fields by which a task names its rows, what of them is held out, and their columns."""

    @property
    def dataset(self) -> str: ...
    @property
    def dataset_revision(self) -> str: ...
    @property
    def subset(self) -> str | None: ...
    @property
    def text(self) -> str: ...
    @property
    def label(self) -> str: ...
    @property
    def labels(self) -> tuple[str, ...]: ...
    @property
    def held_out(self) -> float | str: ...
    @property
    def samples(self) -> int | None: ...


@dataclass(frozen=True)
class Sources:
    """Tables under TRAINING and, unless a share of the training rows is to be held out, under HELD_OUT."""

    tables: Mapping[str, pa.Table]
    notes: Sequence[str]
    fingerprints: Mapping[str, str]
    """Of what was read, by the field of the task that names it."""
    local: Mapping[str, LocalFiles]
    """Files of this machine that were read, by the field of the task that names them."""
    commit: str | None
    """Of the Hub's data set."""

    @property
    def num_rows(self) -> int:
        return sum(table.num_rows for table in self.tables.values())


@dataclass(frozen=True)
class TrainEvalSplit:
    """Tables with the columns ``text``, ``label`` (index into ``labels``) and ``row_id``."""

    train: pa.Table
    held_out: pa.Table
    labels: tuple[str, ...]
    notes: Sequence[str]
    sources: Sources


def split_rows(task: LabelledRows, seed: int, store: Store | None, cache: Path) -> TrainEvalSplit:
    """Reads, checks and divides the rows of a task, without the seconds that importing `datasets` takes.

    Raises:
        InvalidInput: with every fault of the data at once.
        StorageFailed: the store is away or denies.
    """
    sources = _find_sources(task, store, cache)
    texts, labels, notes = _checked(task, sources.tables)
    held_part, held = (TRAINING, task.held_out) if HELD_OUT not in texts else (HELD_OUT, labels.codes[HELD_OUT])
    assert not isinstance(held, str)  # its rows are a part of their own
    where = f"dataset={task.dataset!r}"
    rows = choose_rows(labels.codes[TRAINING], held, seed=seed, samples=task.samples, where=where)
    train = _side(texts[TRAINING], labels.codes[TRAINING], rows[0], first_id=0)
    first_id = len(texts[TRAINING]) if held_part == HELD_OUT else 0
    held_out = _side(texts[held_part], labels.codes[held_part], rows[1], first_id=first_id)
    faults, said = overlap(train["text"], held_out["text"], rows[1])
    if missing := _only_in(held_out, train, labels.names):
        faults.append(
            f"no training row for classes of the held-out rows: {missing}: use more samples, or hold out other rows"
        )
    if faults:
        raise InvalidInput(faults, cause="data")
    if missing := _only_in(train, held_out, labels.names):
        said.append(f"no held-out row for classes that are trained: {missing}: they are not measured")
    said += contradictions(train["text"], train["label"].to_numpy(), labels.names)
    if task.samples is not None and task.samples > sources.num_rows:
        said.append(f"samples={task.samples}: there are {sources.num_rows} rows, and all are used")
    return TrainEvalSplit(train, held_out, labels.names, [*sources.notes, *notes, *said], sources)


def _find_sources(task: LabelledRows, store: Store | None, cache: Path) -> Sources:
    """Reads what ``task.dataset`` and ``task.held_out`` name: a split of the data set before a file of that name.

    Raises:
        InvalidInput: not found, unreadable, no such split.
        StorageFailed: the store is away or denies.
    """
    columns = (task.text, task.label)
    wanted = Wanted("dataset", task.dataset, "dataset", task.dataset_revision, columns)
    read = {"dataset": read_source(wanted, task.subset, store, cache)}
    source = read["dataset"]
    training = source.training()
    others = [name for name in source.splits if name != training]
    tables = {TRAINING: source.splits[training]}
    notes = list(source.notes)
    if not isinstance(task.held_out, str):
        notes += _unused(source, training, others)
    elif task.held_out in others:
        tables[HELD_OUT] = source.splits[task.held_out]
        if hint := _file_hint(task.held_out):
            notes.append(f"held_out={task.held_out!r}: the split of {source.where} is used{hint}")
    elif task.held_out != training and (looks_like_path(task.held_out) or Path(task.held_out).exists()):
        other = read_source(Wanted("held_out", task.held_out, "dataset", columns=columns), None, store, cache)
        read["held_out"] = other
        tables[HELD_OUT] = other.splits[other.training()]
        notes += other.notes
    else:
        raise InvalidInput(_no_split(task, source, training, others), cause="data")
    fingerprints = {field: found.fingerprint for field, found in read.items()}
    local = {field: found.local for field, found in read.items() if found.local}
    return Sources(tables, notes, fingerprints, local, source.commit)


def _file_hint(split: str) -> str:
    """What is said where a file or folder has the name of a split too."""
    return f"; to use the file or folder of that name, write './{split}'" if Path(split).exists() else ""


def _unused(source: Source, training: str, others: list[str]) -> list[str]:
    if not others:
        return []
    shown = ", ".join(f"{name!r} ({counted(source.splits[name].num_rows, 'row')})" for name in others)
    return [f"of {source.where} only the split {training!r} is used; held_out= may name another one: {shown}"]


def _no_split(task: LabelledRows, source: Source, training: str, others: list[str]) -> str:
    if task.held_out == training:
        problem = f"that is the split to train on{_file_hint(training)}"
    else:
        problem = f"{source.where} has no such split, and no such file is here"
    there = f"one of its splits {', '.join(map(repr, others))}, " if others else ""
    return f"held_out={task.held_out!r}: {problem}; give {there}a file, or a share such as 0.2"


def _checked(
    task: LabelledRows, tables: Mapping[str, pa.Table]
) -> tuple[dict[str, pa.ChunkedArray], Labels, list[str]]:
    """Texts, labels and notes of all parts; raises InvalidInput with all that is wrong in any."""
    faults: list[str] = []
    notes: list[str] = []
    labelled = {}
    for part, table in tables.items():
        where = f"dataset={task.dataset!r}" if part == TRAINING else f"held_out={task.held_out!r}"
        columns = {"text": task.text, "label": task.label}
        missing = [fault for field, name in columns.items() if (fault := missing_column(table, where, field, name))]
        if not table.num_rows:
            missing.append(f"{where}: 0 rows; the {part} rows are expected there")
        elif task.text in table.column_names:
            wrong, said = text_faults(table, task.text, part)
            faults += wrong
            notes += said
        faults += missing
        if task.label in table.column_names and table.num_rows:
            labelled[part] = table[task.label]
    try:
        kept = next((names for table in tables.values() if (names := class_names(table, task.label))), ())
        labels = encode(labelled, task.label, given=task.labels, kept=kept) if labelled else None
    except InvalidInput as found:
        labels = None
        faults += found.faults
    if faults or labels is None:
        raise InvalidInput(faults, cause="data")
    return {part: plain(table[task.text]) for part, table in tables.items()}, labels, [*notes, *labels.notes]


def _side(texts: pa.ChunkedArray, codes: np.ndarray, rows: np.ndarray, *, first_id: int) -> pa.Table:
    return pa.table({"text": texts.take(pa.array(rows)), "label": codes[rows], "row_id": rows + first_id})


def _only_in(rows: pa.Table, others: pa.Table, names: tuple[str, ...]) -> str:
    """The classes that ``others`` lack, for a message."""
    missing = np.setdiff1d(rows["label"].to_numpy(), others["label"].to_numpy())
    more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
    return ", ".join(repr(names[code]) for code in missing[:5]) + more
