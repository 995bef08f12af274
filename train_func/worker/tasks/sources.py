"""Which rows of the data are to train on and which are held out: splits of one data set, or two of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from train_func.counted import counted
from train_func.errors import InvalidInput
from train_func.storage import Store
from train_func.tasks import TextClassification
from train_func.worker.inputs.locate import LocalFiles, Wanted, looks_like_path
from train_func.worker.inputs.reader import Source, read_source

TRAINING, HELD_OUT = "training", "held-out"


@dataclass(frozen=True)
class Sources:
    """Tables under TRAINING and, unless a share of the training rows is to be held out, under HELD_OUT."""

    tables: Mapping[str, pa.Table]
    fingerprints: Mapping[str, str]
    """Of what was read, by the field of the task that names it."""
    notes: tuple[str, ...]
    local: Mapping[str, LocalFiles]
    """Files of this machine that were read, by the field of the task that names them."""
    commit: str | None = None
    """Of the Hub's data set."""


def find_sources(task: TextClassification, store: Store | None, cache: Path) -> Sources:
    """Reads what ``task.dataset`` and ``task.held_out`` name.

    Raises:
        InvalidInput: not found, unreadable, no such split.
        StorageFailed: the store is away or denies.
    """
    columns = (task.text, task.label)
    wanted = Wanted("dataset", task.dataset, "dataset", task.dataset_revision, columns)
    source = read_source(wanted, task.subset, store, cache)
    training = source.training()
    others = [name for name in source.splits if name != training]
    tables = {TRAINING: source.splits[training]}
    local = {"dataset": source.local} if source.local else {}
    found = {"dataset": source.fingerprint}
    if not isinstance(task.held_out, str):
        notes = (*source.notes, *_unused(source, training, others))
        return Sources(tables, found, notes, local, source.commit)
    if task.held_out in others:
        tables[HELD_OUT] = source.splits[task.held_out]
        return Sources(tables, found, source.notes, local, source.commit)
    if task.held_out != training and (looks_like_path(task.held_out) or Path(task.held_out).exists()):
        other = read_source(Wanted("held_out", task.held_out, "dataset", columns=columns), None, store, cache)
        both = {**local, **({"held_out": other.local} if other.local else {})}
        tables[HELD_OUT] = other.splits[other.training()]
        return Sources(
            tables, {**found, "held_out": other.fingerprint}, source.notes + other.notes, both, source.commit
        )
    raise InvalidInput(_no_split(task, source, training, others), cause="data")


def _unused(source: Source, training: str, others: list[str]) -> list[str]:
    if not others:
        return []
    shown = ", ".join(f"{name!r} ({counted(source.splits[name].num_rows, 'row')})" for name in others)
    return [f"of {source.where} only the split {training!r} is used; held_out= may name another one: {shown}"]


def _no_split(task: TextClassification, source: Source, training: str, others: list[str]) -> str:
    if task.held_out == training:
        problem = "that is the split to train on"
    else:
        problem = f"{source.where} has no such split, and no such file is here"
    there = f"one of its splits {', '.join(map(repr, others))}, " if others else ""
    return f"held_out={task.held_out!r}: {problem}; give {there}a file, or a share such as 0.2"
