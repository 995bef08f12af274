"""Samples of rows: what ranks compare of data sets without row ids, at a cost that no number or size of rows raises.

The ``_fingerprint`` of a data set decides nothing here: it names the files and functions that rows come from. One file
in two caches has two, and a function that draws at random has one on all ranks.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from datasets import Dataset

from train_func.counted import listed

NUM_ROWS = 256
NUM_VALUES = 1024  # of one row's column, in all lists within it
NUM_ITEMS = 64  # of a list of lists
NUM_BYTES = 1024  # at each of three places of a text or a file
FEWEST = 4  # of a list in a list

Update = Callable[[bytes | memoryview], object]


@dataclass(frozen=True)
class RowSample:
    """What a rank says of its rows."""

    num_rows: int
    columns: dict[str, str]
    """Digest of each column's type."""
    rows: dict[int, str]
    """Digest of what is looked at of each row of the sample, by its position."""


def sample_of(rows: Dataset) -> RowSample:
    """Takes rows spread over the set, the first and the last among them, as they are stored: no transform is called."""
    positions = _spread(len(rows), NUM_ROWS)
    table = rows.with_format("arrow")[positions.tolist()]
    digests = [hashlib.sha256() for _ in positions]
    for name in sorted(table.column_names):
        for digest, value in zip(digests, table[name], strict=True):
            _add(digest.update, value, NUM_VALUES)
    return RowSample(
        len(rows),
        {name: hashlib.sha256(repr(kind).encode()).hexdigest() for name, kind in rows.features.items()},
        {int(position): digest.hexdigest() for position, digest in zip(positions, digests, strict=True)},
    )


def difference(samples: Sequence[RowSample]) -> str | None:
    """How the rows of the ranks differ; None when their samples are the same."""
    if len({sample.num_rows for sample in samples}) > 1:
        return ", ".join(f"{sample.num_rows} on rank {rank}" for rank, sample in enumerate(samples))
    first = samples[0]
    for rank, sample in enumerate(samples):
        if columns := sorted({name for name, _ in first.columns.items() ^ sample.columns.items()}):
            return f"columns of other names or types on rank {rank} than on rank 0: {listed(columns)}"
    for rank, sample in enumerate(samples):
        if positions := sorted({position for position, _ in first.rows.items() ^ sample.rows.items()}):
            return f"other rows, or another order, on rank {rank} than on rank 0, as at position {positions[0]}"
    return None


def _spread(length: int, most: int) -> npt.NDArray[np.int64]:
    return np.unique(np.linspace(0, length - 1, min(length, most)).astype(np.int64))


def _add(update: Update, value: Any, most: int) -> None:
    """Adds a value to a digest; ``most``: values that are looked at of the lists within it."""
    if not value.is_valid:
        update(b"none;")
    elif isinstance(value, (pa.ExtensionScalar, pa.DictionaryScalar)):
        _add(update, value.value, most)
    elif isinstance(value, pa.ListScalar):
        _add_list(update, value.values, most)
    elif isinstance(value, pa.StructScalar):
        for name in sorted(value):
            _add(update, value[name], most)
    elif isinstance(value, pa.BinaryScalar):  # texts are among them
        _add_bytes(update, memoryview(value.as_buffer()))
    else:
        update(f"{value.as_py()!r};".encode())


def _add_list(update: Update, values: pa.Array, most: int) -> None:
    update(f"{len(values)} values;".encode())
    if pa.types.is_primitive(values.type):
        update(repr(values.take(_spread(len(values), most)).to_pylist()).encode())
        return
    positions = _spread(len(values), min(most, NUM_ITEMS))
    for position in positions:
        _add(update, values[int(position)], max(FEWEST, most // len(positions)))


def _add_bytes(update: Update, data: memoryview) -> None:
    update(f"{len(data)} bytes;".encode())
    if len(data) <= 3 * NUM_BYTES:
        update(data)
        return
    for start in _spread(len(data) - NUM_BYTES + 1, 3):
        update(data[start : start + NUM_BYTES])
