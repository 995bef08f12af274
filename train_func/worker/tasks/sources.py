"""Reads the rows that a task names in its fields dataset and held_out, as Arrow tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from train_func import kept_tables
from train_func.counted import counted
from train_func.errors import InvalidInput
from train_func.storage import Store
from train_func.worker.inputs.locate import Wanted, looks_like_path
from train_func.worker.inputs.reader import Source, read_source

TRAINING, HELD_OUT = "training", "held-out"


class DataFields(Protocol):
    """The fields of a task that say which rows are used."""

    @property
    def dataset(self) -> str: ...
    @property
    def dataset_revision(self) -> str: ...
    @property
    def subset(self) -> str | None: ...
    @property
    def held_out(self) -> float | str: ...
    @property
    def samples(self) -> int | None: ...


@dataclass(frozen=True)
class Sources:
    """Tables under TRAINING and, unless a share of the training rows is to be held out, under HELD_OUT."""

    tables: Mapping[str, pa.Table]
    notes: Sequence[str]
    read: Mapping[str, Source]
    """What was read, by the field of the task that names it."""

    @property
    def fingerprints(self) -> dict[str, str]:
        return {field: found.fingerprint for field, found in self.read.items()}

    @property
    def num_rows(self) -> int:
        return sum(table.num_rows for table in self.tables.values())


def find_sources(
    task: DataFields,
    columns: tuple[str, ...],
    store: Store | None,
    cache: Path,
    *,
    classes: tuple[str, ...] = (),
) -> Sources:
    """Reads what ``task.dataset`` and ``task.held_out`` name: a split of the data set before a file of that name.

    Args:
        columns: that are read, by which the separator of a csv file is known.
        classes: those of them whose values are classes.

    Raises:
        InvalidInput: not found, unreadable, no such split.
        StorageFailed: the store is away or denies.
    """
    wanted = Wanted("dataset", task.dataset, "dataset", task.dataset_revision, columns, classes)
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
        wanted = Wanted("held_out", task.held_out, "dataset", columns=columns, classes=classes)
        other = read_source(wanted, None, store, cache)
        read["held_out"] = other
        tables[HELD_OUT] = other.splits[other.training()]
        notes += other.notes
    else:
        raise InvalidInput(_no_split(task, source, training, others), cause="data")
    return Sources(tables, notes, read)


def _file_hint(split: str) -> str:
    """What is said where a file or folder has the name of a split too."""
    return f"; to use the file or folder of that name, write './{split}'" if Path(split).exists() else ""


def _unused(source: Source, training: str, others: list[str]) -> list[str]:
    if not others:
        return []
    shown = ", ".join(f"{name!r} ({counted(source.splits[name].num_rows, 'row')})" for name in others)
    return [f"of {source.where} only the split {training!r} is used; held_out= may name another one: {shown}"]


def _no_split(task: DataFields, source: Source, training: str, others: list[str]) -> str:
    if task.held_out == training:
        problem = f"that is the split to train on{_file_hint(training)}"
    else:
        problem = f"{source.where} has no such split, and no such file is here"
    there = f"one of its splits {', '.join(map(repr, others))}, " if others else ""
    return f"held_out={task.held_out!r}: {problem}; give {there}a file, or a share such as 0.2"


def where(task: DataFields, part: str) -> str:
    """How messages call the rows of a part, TRAINING or HELD_OUT."""
    field, address = ("dataset", task.dataset) if part == TRAINING else ("held_out", task.held_out)
    if kept_tables.is_one(str(address)):
        return f"{field}: the DataFrame or Dataset that was given (its rows are counted from 1, whatever its index)"
    return f"{field}={address!r}"
