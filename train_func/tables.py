"""Tables that a notebook holds, saved once and by content, so that a Run names one like any other file.

Equal rows, in the same order and of the same types, make the same file: ``inputs/<SHA-256>/table.parquet`` below
TRAIN_FUNC_HOME. Each run that was submitted with the table has a file beside it. A table is removed with the last run
that needs it; without a run, a week after it was saved, when another table is saved. Make the Run
again to submit it after that.
"""

import contextlib
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from train_func.errors import InvalidInput
from train_func.plain import is_a
from train_func.text import counted
from train_func.wire.layout import home

if TYPE_CHECKING:
    import pyarrow as pa


UNUSED_SECONDS = 7 * 24 * 3600.0  # that a table stays for a Run that may still be submitted


def tables_folder() -> Path:
    """Returns the folder of the tables."""
    return home(os.environ) / "inputs"


def is_one(address: str) -> bool:
    """Returns whether an address names a saved table."""
    return Path(address).parent.parent.resolve() == tables_folder().resolve()  # either may lead through a link


def in_words(address: str) -> str:
    """Returns words for a saved table, with its number of rows if it is on this machine."""
    import pyarrow.parquet as parquet

    size = ""
    with contextlib.suppress(OSError, ValueError):  # it is on another machine
        size = f", {counted(parquet.read_metadata(address).num_rows, 'row')}"
    return f"table {Path(address).parent.name[:7]}{size}"


def keep(store: str, run: str, addresses: Iterable[object]) -> list[Path]:
    """Notes that a run in a store needs the saved tables among the files; returns the new notes."""
    folders = sorted({Path(address).parent for address in map(str, addresses) if is_one(address)})
    new = [note for folder in folders if not (note := folder / _note(store, run)).exists()]
    for note in new:
        note.write_text(f"{run} in {store}\n")
    return new


def of_run(store: str, run: str) -> list[Path]:
    """Returns the tables that no other run needs."""
    notes = [note for note in tables_folder().glob(f"*/{_note(store, run)}") if _notes(note.parent) == [note]]
    return [path for note in notes for path in note.parent.glob("*.parquet")]


def release(store: str, run: str) -> None:
    """Removes the tables that no other run needs."""
    for note in list(tables_folder().glob(f"*/{_note(store, run)}")):
        if _notes(note.parent) == [note]:
            shutil.rmtree(note.parent, ignore_errors=True)
        else:
            note.unlink(missing_ok=True)


def _note(store: str, run: str) -> str:
    return f"run-{hashlib.sha256(f'{store} {run}'.encode()).hexdigest()[:16]}"


def _notes(folder: Path) -> list[Path]:
    return sorted(folder.glob("run-*"))


ROWS = 50_000  # of a group of the file, whatever the table's own pieces
ROWS_WITH_FILES = 100  # of a group where rows have images or sounds, as `datasets` writes them
_WITH_FILES = ("Image", "Audio")  # of `datasets`: what such a column holds may be paths of this machine
NAME = "table.parquet"


def is_table(value: object) -> bool:
    """Returns whether ``value`` is a table of pandas or of datasets, also one of a kind that cannot be saved."""
    kinds = ("Dataset", "DatasetDict", "IterableDataset", "IterableDatasetDict")
    return is_a(value, "pandas", "DataFrame") or any(is_a(value, "datasets", kind) for kind in kinds)


def saved(table: Any, field: str) -> str:
    """Saves ``table``, the value of a Run's ``field``, and returns the path of its file.

    Raises:
        InvalidInput: the kind of the table, or of a column, cannot be saved.
    """
    pieces = [_of_frame(table, field)] if is_a(table, "pandas", "DataFrame") else _of_dataset(table, field)
    inputs = tables_folder()
    try:
        inputs.mkdir(parents=True, exist_ok=True)
        for path in inputs.glob(f"*/{NAME}"):
            if not _notes(path.parent) and time.time() - path.stat().st_mtime > UNUSED_SECONDS:
                shutil.rmtree(path.parent, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=".part-", dir=inputs) as folder:
            part = Path(folder, NAME)
            _write(part, pieces)
            with part.open("rb") as file:
                target = inputs / hashlib.file_digest(file, "sha256").hexdigest() / NAME
            target.parent.mkdir(exist_ok=True)
            part.replace(target)  # also when it is there: it is then the same, unless a user has changed it
    except OSError as error:
        raise InvalidInput(
            f"{field}: the table cannot be saved in {inputs}: {error}; TRAIN_FUNC_HOME may name another folder",
            cause="storage",
        ) from None
    return str(target)


def check_there(addresses: Mapping[str, str]) -> None:
    """Raises InvalidInput if tables of a Run, by its fields, were removed since."""
    faults = [
        f"{field}: the DataFrame or Dataset was saved as {address}, which was removed when no run needed it: make the "
        "Run again"
        for field, address in addresses.items()
        if is_one(address) and not Path(address).exists()
    ]
    if faults:
        raise InvalidInput(faults, cause="data")


def _of_frame(frame: Any, field: str) -> "pa.Table":
    """Returns the columns of a frame; a named index is a column too, an unnamed one only numbers the rows."""
    import pyarrow as pa

    levels = [level for level, name in enumerate(frame.index.names) if name is not None and name not in frame]
    # A file names its columns in text, where 1 and "1" are the same; pandas takes a number for a name first.
    texts = frame.copy(deep=False)
    texts.columns = [str(name) for name in frame.columns]
    texts.index = frame.index.set_names([None if name is None else str(name) for name in frame.index.names])
    texts = texts.reset_index(level=levels, allow_duplicates=True) if levels else texts
    if repeated := sorted({*texts.columns[texts.columns.duplicated()]}):
        twice = ", ".join(map(repr, repeated))
        raise InvalidInput(f"{field}: the DataFrame has more than one column {twice}; rename or drop one", cause="data")
    columns, faults = {}, []
    for name, column in texts.items():
        try:
            columns[name] = pa.array(column, from_pandas=True)
        except (pa.ArrowException, TypeError, ValueError) as error:
            why = " ".join(str(error).split())
            faults.append(f"{field}: column {name!r} of the DataFrame cannot be saved: {why}; {_remedy(column, name)}")
    if faults:
        raise InvalidInput(faults, cause="data")
    return pa.table(columns)


def _remedy(column: Any, name: str) -> str:
    """Returns the remedy of a column that cannot be saved."""
    first = next(iter(column.dropna()), None)
    if is_a(first, "PIL", "Image") or is_a(first, "numpy", "ndarray"):
        return (
            "give images as the bytes of image files, or a datasets.Dataset with an Image column: for a frame of PIL "
            "images datasets.Dataset.from_dict(frame.to_dict('list')) makes one"
        )
    return f"give all its rows one type, and texts of whole characters, or leave it out: frame.drop(columns=[{name!r}])"


def _of_dataset(dataset: Any, field: str) -> "Iterator[pa.Table]":
    """Yields the rows of a Dataset in their selection and order, with the names of its classes and embedded files."""
    from datasets.table import embed_table_storage

    if is_a(dataset, "datasets", "DatasetDict") or is_a(dataset, "datasets", "IterableDatasetDict"):
        first, second, *_ = [*sorted(dataset, key=lambda name: name != "train"), None, None]
        held_out = f", held_out=splits[{second!r}]" if second else ""
        meant = f"dataset=splits[{first!r}]{held_out}" if field.isidentifier() else f"each by a name, splits[{first!r}]"
        raise InvalidInput(
            f"{field}: a {type(dataset).__name__} is no table, but has the splits {', '.join(map(repr, dataset))}; "
            f"give the splits to use: {meant}",
            cause="data",
        )
    if is_a(dataset, "datasets", "IterableDataset"):
        raise InvalidInput(
            f"{field}: an IterableDataset has no number of rows, and every row is to be used exactly once per epoch; "
            "load it without streaming=True, or keep some rows: datasets.Dataset.from_list(list(rows.take(10_000)))",
            cause="data",
        )
    if dataset.format["type"] == "custom":
        raise InvalidInput(
            f"{field}: the Dataset changes its rows while they are read (set_transform), so they differ from those on "
            "disk; change them once: dataset.reset_format(), then dataset.map(...)",
            cause="data",
        )
    rows, metadata = dataset.with_format("arrow"), dataset.features.arrow_schema.metadata
    has_files = any(getattr(feature, "_type", None) in _WITH_FILES for feature in dataset.features.values())
    at_once = ROWS_WITH_FILES if has_files else ROWS
    for start in range(0, max(1, dataset.num_rows), at_once):
        yield embed_table_storage(rows[start : start + at_once].replace_schema_metadata(metadata))


def _write(path: Path, pieces: "Iterable[pa.Table]") -> None:
    """Writes the pieces to a file, and returns when the disk has it."""
    import pyarrow.parquet as parquet

    writer = None
    for piece in pieces:
        writer = writer or parquet.ParquetWriter(path, piece.schema)
        writer.write_table(piece.combine_chunks(), row_group_size=ROWS)
    assert writer is not None
    writer.close()
    with path.open("rb") as file:
        os.fsync(file.fileno())
