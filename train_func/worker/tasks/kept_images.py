"""Kept images: those of a data set as they are in their files, once per machine, memory-mapped by every process.

Each is decoded once, when a run is checked; what was found is kept beside them.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from train_func.counted import counted, listed
from train_func.errors import InvalidInput
from train_func.worker.inputs.cache import entry, remove
from train_func.worker.inputs.image_folder import IS_FOLDER, STORED
from train_func.worker.inputs.parquet_file import holds_bytes, values_of
from train_func.worker.inputs.row_numbers import COUNTED, MAX_SHOWN
from train_func.worker.tasks.image_decoding import Look, checked

VERSION = 3  # of what is stored; to be raised when the same input gives something else
BATCH = 256  # images written at once, or fewer that have BATCH_BYTES: Arrow ends a piece of a column at 2 GB
BATCH_BYTES = 64 * 2**20
LOSSLESS = ("RGB", "P", "L", "1")  # modes of Pillow that are the same in RGB
SCHEMA = pa.schema([("image", STORED), ("sha256", pa.string())])


@dataclass(frozen=True)
class KeptImages:
    """``table``: columns image (bytes and name) and sha256 of its bytes, a row for each of the data set."""

    table: pa.Table
    key: str
    """Of the content."""


def keep(
    table: pa.Table, column: str, *, root: str, known_by: list[str | None], has_commit: bool, cache: Path
) -> KeptImages:
    """The images of a column.

    Args:
        root: what the data set was read from; images of a folder are called by their paths from it.
        known_by: what tells its content from any other's.
        has_commit: whether it is the Hub's, whose files never change.

    Raises:
        InvalidInput: the column holds none, or no file where a row names one.
    """
    if fault := _type_fault(table, column):
        raise InvalidInput(fault, cause="data")
    may_read = has_commit or IS_FOLDER in (table.schema.metadata or {})
    key = hashlib.sha256(json.dumps([VERSION, column, *known_by]).encode()).hexdigest()
    name = f"images/{key}.arrow"

    def write(part: Path) -> None:
        with pa.ipc.new_stream(str(part), SCHEMA) as writer:
            for batch in _batches(table, column, root, may_read=may_read):
                writer.write_batch(batch)

    path = entry(cache, name, write)
    try:
        return KeptImages(_mapped(path), key)
    except (pa.ArrowInvalid, OSError) as error:  # cut short by something outside this program
        if isinstance(error, OSError) and error.errno is not None:
            raise
        remove(path)
        return KeptImages(_mapped(entry(cache, name, write)), key)


def _mapped(path: Path) -> pa.Table:
    return pa.ipc.open_stream(pa.memory_map(str(path))).read_all()


def _type_fault(table: pa.Table, column: str) -> str | None:
    kind = table.schema.field(column).type
    has_bytes = pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0
    if holds_bytes(kind) or (
        has_bytes and pa.types.is_null(kind.field("bytes").type)
    ):  # null: paths alone, told by row
        return None
    others = [field.name for field in table.schema if holds_bytes(field.type) or pa.types.is_struct(field.type)]
    return (
        f"column {column!r} holds {kind}, not images: bytes of image files are expected, or what datasets calls Image "
        f"(paths become it by rows.cast_column({column!r}, datasets.Image())); columns with such: "
        f"{', '.join(others) or 'none'}"
    )


def _batches(table: pa.Table, column: str, root: str, *, may_read: bool) -> Iterator[pa.RecordBatch]:
    missing: list[str] = []
    rows: list[dict[str, Any]] = []
    size = 0
    for at, scalar in enumerate(values_of(table, column), 1):
        value = scalar.as_py()
        data, path = (value.get("bytes"), value.get("path")) if isinstance(value, dict) else (value, None)
        if data is None and path and may_read and Path(path).is_file():
            data = Path(path).read_bytes()
        if data is None:
            missing.append(f"row {at}" + (f" ({path})" if path else ""))
            data = b""
        rows.append({"image": {"bytes": data, "path": _name(path, root)}, "sha256": hashlib.sha256(data).hexdigest()})
        size += len(data)
        if len(rows) == BATCH or size >= BATCH_BYTES:
            yield pa.RecordBatch.from_pylist(rows, SCHEMA)
            rows, size = [], 0
    yield pa.RecordBatch.from_pylist(rows, SCHEMA)
    if missing:
        raise InvalidInput(
            f"column {column!r}: {len(missing)} of {counted(table.num_rows, 'image')} with no bytes: "
            f"{listed(missing, MAX_SHOWN)} {COUNTED}; remove these rows, or save the data set with its images in it",
            cause="data",
        )


def _name(path: str | None, root: str) -> str:
    is_inside = path is not None and path.startswith(f"{root}{os.sep}")
    return "" if path is None else path.removeprefix(f"{root}{os.sep}") if is_inside else Path(path).name


def name_of(stored: dict[str, Any], row: int | None = None) -> str:
    """How messages call an image; ``row``: of its data set, from 0."""
    where = "" if row is None else f"row {row + 1}"
    return f"{stored['path']}{f' ({where})' if where else ''}" if stored["path"] else where or "an image"


@dataclass(frozen=True)
class Looks:
    """What was seen of each of the images of a part."""

    pixels: np.ndarray
    """The same for images that show the same, in the order of the rows."""
    notes: list[str]


def look_at_each(kept: KeptImages, part: str, cache: Path) -> Looks:
    """What the images of the rows called ``part`` show.

    Raises:
        InvalidInput: naming those that cannot be decoded.
    """

    def write(target: Path) -> None:
        looks, faults = _tried(kept.table)
        if faults:
            more = f"{part} rows: {len(faults)} of {counted(kept.table.num_rows, 'image')} cannot be used: "
            raise InvalidInput(f"{more}{listed(faults, MAX_SHOWN, separator='; ')} {COUNTED}", cause="data")
        lossy = Counter(look.mode for look in looks if look.mode not in LOSSLESS)
        transparent, framed = sum(look.is_transparent for look in looks), sum(look.has_frames for look in looks)
        pixels = [look.pixels for look in looks]
        target.write_text(json.dumps({"modes": lossy, "transparent": transparent, "framed": framed, "pixels": pixels}))

    seen = json.loads(entry(cache, f"images/{kept.key}.json", write).read_text())
    of_all, notes = f"of {counted(kept.table.num_rows, 'image')}", []
    if modes := seen["modes"]:
        shown = ", ".join(f"{number} of mode {mode}" for mode, number in sorted(modes.items()))
        notes.append(f"{part} rows: {sum(modes.values())} {of_all} become RGB: {shown}")
    if number := seen["transparent"]:
        notes.append(f"{part} rows: {number} {of_all} may be transparent, and are shown on white")
    if number := seen["framed"]:
        notes.append(f"{part} rows: {number} {of_all} have several frames, of which the first is used")
    return Looks(np.array(seen["pixels"]), notes)


def _tried(table: pa.Table) -> tuple[list[Look], list[str]]:
    """What was seen of those that can be decoded, and what is wrong with the others."""

    images = table["image"]  # once: a table makes it anew at every asking

    def tried(row: int) -> tuple[Look | None, str]:
        stored = images[row].as_py()
        try:
            return checked(stored["bytes"], name_of(stored, row)), ""
        except InvalidInput as refused:
            return None, refused.faults[0]

    with ThreadPoolExecutor(os.cpu_count()) as threads:  # Pillow decodes without the lock of the interpreter
        found = list(threads.map(tried, range(table.num_rows), chunksize=BATCH))
    return [look for look, _ in found if look], [fault for _, fault in found if fault]
