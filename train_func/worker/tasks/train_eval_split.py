"""Divides the rows of a task into training and held-out ones, each with its ``row_id``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from train_func.worker.tasks.sources import HELD_OUT, TRAINING, DataFields, Sources, where
from train_func.worker.tasks.stratified_sample import choose_rows


@dataclass(frozen=True)
class TrainEvalSplit:
    """Tables with the columns that the task encodes, and ``row_id``."""

    train: pa.Table
    held_out: pa.Table
    labels: tuple[str, ...]
    """Names of the classes, in the order of their numbers; empty where there are none."""
    notes: Sequence[str]
    sources: Sources

    @property
    def first_held_out(self) -> int | None:
        """The row_id of the first held-out row, where these are a file or split of their own."""
        tables = self.sources.tables
        return tables[TRAINING].num_rows if HELD_OUT in tables else None


@dataclass(frozen=True)
class Divided:
    """The rows of both sides; ``held_rows``: where the held-out ones stand in what they were read from."""

    train: pa.Table
    held_out: pa.Table
    held_rows: np.ndarray
    notes: tuple[str, ...]


def divide(
    task: DataFields,
    seed: int,
    tables: Mapping[str, pa.Table],
    strata: Mapping[str, np.ndarray],
    *,
    num_rows: int,
    each_stratum: bool,
) -> Divided:
    """Chooses the rows of both sides, so that every stratum keeps its share.

    Args:
        tables: under TRAINING and, where held-out rows are a part of their own, HELD_OUT.
        strata: the stratum of every row of each part, 0, 1, ...
        num_rows: of all parts.
        each_stratum: whether a row of each is expected on both sides.

    Raises:
        InvalidInput: there are too few rows.
    """
    held_part = HELD_OUT if HELD_OUT in tables else TRAINING
    held = strata[HELD_OUT] if held_part == HELD_OUT else task.held_out
    assert not isinstance(held, str)  # its rows are a part of their own
    here = where(task, TRAINING)
    rows = choose_rows(strata[TRAINING], held, seed=seed, samples=task.samples, where=here, each_class=each_stratum)
    first_id = tables[TRAINING].num_rows if held_part == HELD_OUT else 0
    train = _side(tables[TRAINING], rows[0], first_id=0)
    held_out = _side(tables[held_part], rows[1], first_id=first_id)
    notes: tuple[str, ...] = ()
    if task.samples is not None and task.samples > num_rows:
        notes = (f"samples={task.samples}: there are {num_rows} rows, and all are used",)
    return Divided(train, held_out, rows[1], notes)


def _side(table: pa.Table, rows: np.ndarray, *, first_id: int) -> pa.Table:
    return table.take(pa.array(rows)).append_column("row_id", pa.array(rows + first_id))
