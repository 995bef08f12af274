"""Tables that a notebook holds, saved once and by content, so that a Run names one like any other file.

The same rows, in the same order and of the same types, give the same file: ``inputs/<SHA-256>/table.parquet`` below
TRAIN_FUNC_HOME. Beside it each run that was submitted with the table has a file, and each process that has made a Run
of it holds a lock, which the kernel lets go of when the process dies. Without either it is removed when a process that
has saved tables ends, or saves another one. Where files cannot be locked, tables stay.
"""

import atexit
import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from train_func import lock
from train_func.errors import InvalidInput
from train_func.home import home
from train_func.plain import is_a
from train_func.text import counted, listed

if TYPE_CHECKING:
    import pyarrow as pa


_HELD, _ALL = ".held", ".lock"
_held: dict[Path, int] = {}  # the descriptors of the locks of this process, by folder


def tables_folder() -> Path:
    """Where tables are kept."""
    return home(os.environ) / "inputs"


@contextlib.contextmanager
def added(to: Path) -> Iterator[None]:
    """While the table is put into the folder ``to``, no other process removes it; this one needs it from then on."""
    with _alone(to.parent) as is_alone:
        to.mkdir(exist_ok=True)
        yield
        if is_alone:
            before = _held.pop(to, None)
            _held[to] = lock.share(to / _HELD)  # anew each time: a user may have removed the folder meanwhile
            if before is not None:
                os.close(before)
            _sweep(to.parent)


def is_one(address: str) -> bool:
    """Whether an address is that of a saved table."""
    return Path(address).parent.parent.resolve() == tables_folder().resolve()  # either may lead through a link


def keep(store: str, run: str, addresses: Iterable[object]) -> list[Path]:
    """Notes that a run in a store needs those of the files that are saved tables; the notes that are new."""
    found = {path.parent for path in map(Path, map(str, addresses)) if is_one(str(path))}
    new = [note for own in sorted(found) if not (note := own / _note(store, run)).exists()]
    for note in new:
        note.write_text(f"{run} in {store}\n")
    return new


def of_run(store: str, run: str) -> list[Path]:
    """The tables that no other run needs."""
    notes = [note for note in tables_folder().glob(f"*/{_note(store, run)}") if _notes(note.parent) == [note]]
    return [path for note in notes for path in note.parent.glob("*.parquet")]


def release(store: str, run: str) -> None:
    """The run needs its tables no more: those that no other one needs go, or go with the process that holds a Run."""
    with _alone(tables_folder()) as is_alone:
        for note in tables_folder().glob(f"*/{_note(store, run)}") if is_alone else ():
            note.unlink(missing_ok=True)
        if is_alone:
            _sweep(tables_folder())


def _note(store: str, run: str) -> str:
    return f"run-{hashlib.sha256(f'{store} {run}'.encode()).hexdigest()[:16]}"


def _notes(of: Path) -> list[Path]:
    return sorted(of.glob("run-*"))


@contextlib.contextmanager
def _alone(inputs: Path) -> Iterator[bool]:
    """Whether this process alone changes what is kept there; False where files cannot be locked."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock.hold(inputs / _ALL))
        except (OSError, ImportError):
            yield False
        else:
            yield True


def _sweep(inputs: Path) -> None:
    """Removes the tables that nothing needs; what earlier versions have kept, without a lock, stays."""
    for held in inputs.glob(f"*/{_HELD}"):
        if not _notes(held.parent) and (free := lock.take(held, 0)) is not None:
            lock.release(free)
            shutil.rmtree(held.parent, ignore_errors=True)


@atexit.register
def _leave() -> None:
    """A process that was forked shares the locks of this one: closing its descriptors does not let go of them."""
    folders = {own.parent for own in _held}
    for descriptor in _held.values():
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held.clear()
    for inputs in folders:
        with contextlib.suppress(OSError), _alone(inputs) as is_alone:
            if is_alone:
                _sweep(inputs)


ROWS = 50_000  # written at once; also after how many rows the file begins a new group, whatever the table's own pieces
FILES, FILE_BYTES = 500, 64 * 2**20  # in place of ROWS where rows have images or sounds, or fewer with so many bytes
READ = 100  # of these rows at once, or fewer where the last ones were large: Arrow ends a piece of a column at 2 GB
_WITH_FILES = ("Image", "Audio")  # of `datasets`: what such a column holds may be paths of this machine
NAME = "table.parquet"
_HALF = re.compile("[\ud800-\udfff]")  # of a pair of UTF-16


def is_table(value: object) -> bool:
    """Whether ``value`` is a table of pandas or of datasets, of a kind that can be saved or not."""
    kinds = ("Dataset", "DatasetDict", "IterableDataset", "IterableDatasetDict")
    return is_a(value, "pandas", "DataFrame") or any(is_a(value, "datasets", kind) for kind in kinds)


def saved(table: Any, field: str) -> str:
    """The path of the file that holds ``table``, the value of a Run's ``field``.

    Raises:
        InvalidInput: a kind of table, or of column, that cannot be saved as it is.
    """
    pieces = _of_frame(table, field) if is_a(table, "pandas", "DataFrame") else _of_dataset(table, field)
    inputs = tables_folder()
    try:
        return str(_kept(pieces, inputs))
    except OSError as error:
        raise InvalidInput(
            f"{field}: the table cannot be saved in {inputs}: {error}; TRAIN_FUNC_HOME may name another folder",
            cause="storage",
        ) from None


def _kept(pieces: "Iterator[pa.Table]", inputs: Path) -> Path:
    inputs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".part-", dir=inputs) as folder:
        part = Path(folder, NAME)
        _write(part, pieces)
        with part.open("rb") as file:
            target = inputs / hashlib.file_digest(file, "sha256").hexdigest() / NAME
        with added(target.parent):
            part.replace(target)  # also when it is there: it is then the same, unless a user has changed it
    return target


def _of_frame(frame: Any, field: str) -> "Iterator[pa.Table]":
    """The columns of a frame; an index that has a name is a column too, one without is only the number of the row."""
    import pyarrow as pa

    levels = [level for level, name in enumerate(frame.index.names) if name is not None and name not in frame]
    # A file names its columns in text, where 1 and "1" are the same.
    names = [*(str(frame.index.names[level]) for level in levels), *map(str, frame.columns)]
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        twice = ", ".join(map(repr, repeated))
        raise InvalidInput(f"{field}: the DataFrame has more than one column {twice}; rename or drop one", cause="data")
    index = frame.index.set_names(range(frame.index.nlevels))  # pandas takes a number for a name first
    values = [index.get_level_values(level).to_series() for level in levels]
    held = dict(zip(names, [*values, *(frame[name] for name in frame.columns)], strict=True))
    columns, faults = {}, []
    for name, column in held.items():
        try:
            columns[name] = pa.array(column, from_pandas=True)
        except UnicodeEncodeError:
            faults.append(f"{field}: column {name!r} of the DataFrame {_halves(column)}")
        except (pa.ArrowException, TypeError, ValueError) as error:
            why = " ".join(str(error).split())
            faults.append(f"{field}: column {name!r} of the DataFrame cannot be saved: {why}; {_remedy(column, name)}")
    if faults:
        raise InvalidInput(faults, cause="data")
    whole = pa.table(columns)
    return (whole.slice(start, ROWS) for start in range(0, max(1, whole.num_rows), ROWS))


def _halves(column: Any) -> str:
    """In which rows texts were cut within an emoji, of which half a character is left."""
    texts = (json.dumps(value, ensure_ascii=False, default=str) for value in column)
    rows = [number for number, text in enumerate(texts, 1) if _HALF.search(text)]
    return (
        f"has half a character, as \\ud83d alone is, in {counted(len(rows), 'row')}: {listed(rows)} (counted from 1); "
        "cut texts at whole characters, or remove these halves"
    )


def _remedy(column: Any, name: str) -> str:
    """What to do with a column that cannot be saved."""
    first = next(iter(column.dropna()), None)
    if is_a(first, "PIL", "Image") or is_a(first, "numpy", "ndarray"):
        return (
            "give images as the bytes of image files, or a datasets.Dataset with an Image column: of a frame of PIL "
            "images datasets.Dataset.from_dict(frame.to_dict('list')) makes one"
        )
    return f"give all its rows one type, or leave it out: frame.drop(columns=[{name!r}])"


def _of_dataset(dataset: Any, field: str) -> "Iterator[pa.Table]":
    """The rows of a Dataset as they were selected and ordered, with the names of its classes."""
    if is_a(dataset, "datasets", "DatasetDict") or is_a(dataset, "datasets", "IterableDatasetDict"):
        first, second, *_ = [*sorted(dataset, key=lambda name: name != "train"), None, None]
        held_out = f", held_out=splits[{second!r}]" if second else ""
        meant = f"dataset=splits[{first!r}]{held_out}" if field.isidentifier() else f"each by a name, splits[{first!r}]"
        raise InvalidInput(
            f"{field}: a {type(dataset).__name__} is no table, it holds the splits {', '.join(map(repr, dataset))}; "
            f"give those that are meant: {meant}",
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
            f"{field}: the Dataset changes its rows while they are read (set_transform), and those on disk are others; "
            "change them once: dataset.reset_format(), then dataset.map(...)",
            cause="data",
        )
    rows, metadata = dataset.with_format("arrow"), dataset.features.arrow_schema.metadata
    if with_files := [name for name, of in dataset.features.items() if getattr(of, "_type", None) in _WITH_FILES]:
        return _embedded(rows, metadata, with_files)
    starts = range(0, max(1, dataset.num_rows), ROWS)
    return (rows[start : start + ROWS].replace_schema_metadata(metadata) for start in starts)


def _embedded(rows: Any, metadata: Any, names: list[str]) -> "Iterator[pa.Table]":
    """The rows with the files that these columns may name by paths of this machine."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from datasets.table import embed_table_storage

    held: list[pa.Table] = []
    size = start = 0
    at_once = 1
    while start < max(1, rows.num_rows):
        piece = embed_table_storage(rows[start : start + at_once].replace_schema_metadata(metadata))
        held.append(piece)
        # Of the content alone, so that the same rows give the same pieces wherever they came from.
        found = sum(pc.sum(pc.binary_length(pc.struct_field(piece[name], "bytes"))).as_py() or 0 for name in names)
        size, start = size + found, start + at_once
        at_once = max(1, min(READ, FILE_BYTES * at_once // max(1, found)))
        if size >= FILE_BYTES or sum(of.num_rows for of in held) >= FILES:
            yield pa.concat_tables(held)
            held, size = [], 0
    if held:
        yield pa.concat_tables(held)


def _write(path: Path, pieces: "Iterator[pa.Table]") -> None:
    """On the disk, before its name says that it is whole."""
    import pyarrow.parquet as parquet

    writer = None
    for piece in pieces:
        writer = writer or parquet.ParquetWriter(path, piece.schema)
        writer.write_table(piece.combine_chunks(), row_group_size=ROWS)
    assert writer is not None
    writer.close()
    with path.open("rb") as file:
        os.fsync(file.fileno())
