"""Finds the text and the label column, and names the likely one when a wanted column is missing."""

import difflib
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from train_func.counted import listed
from train_func.worker.inputs.delimited import SEPARATORS
from train_func.worker.inputs.parquet_file import holds_bytes

MANY_WORDS = 20.0  # mean characters from which a text column is rather the text than a class
FEW_CLASSES = 50
_LOOK = 1000  # rows looked at for a guess


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds texts."""
    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def plain(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Texts of any encoding as large_string."""
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    return values.cast(pa.large_string())


def missing_columns(table: pa.Table, where: str, wanted: Iterable[tuple[str, str]]) -> list[str]:
    """The faults of a ``table`` that lacks columns which a task names, by field (text or label), told once."""
    names = table.column_names
    lacking = [(field, name) for field, name in wanted if name not in names]
    if not lacking:
        return []
    if hint := _separator(names) or _headless(names):
        told = " and ".join(f"{name!r} ({field}={name!r})" for field, name in lacking)
        return [f"{where}: no column {told}; columns: {_listed(names)}; {hint}"]
    columns = f"; columns: {_listed(names) or 'none'}"
    faults = []
    for number, (field, name) in enumerate(lacking):
        close = difflib.get_close_matches(name, names, n=1) or _likely(table, field)
        meant = f"; did you mean {close[0]!r}? Then give {field}={close[0]!r}" if close else ""
        faults.append(f"{where}: no column {name!r} ({field}={name!r}){'' if number else columns}{meant}")
    return faults


def text_columns(table: pa.Table) -> list[str]:
    """Names of all columns that hold texts."""
    return [name for name in table.column_names if is_text(table.schema.field(name).type)]


def _likely(table: pa.Table, field: str) -> list[str]:
    """The column that looks most like texts, or most like classes."""
    head = table.slice(0, _LOOK)
    texts = sorted(((_mean_length(head[name]), name) for name in text_columns(table)), reverse=True)
    if field == "text":
        return [name for length, name in texts if length >= MANY_WORDS][:1]
    long = {name for length, name in texts if length >= MANY_WORDS}
    short = [of.name for of in table.schema if of.name not in long and not holds_bytes(of.type)]
    classes = [name for name in short if _num_values(head[name]) <= FEW_CLASSES]
    return classes if len(classes) == 1 else []


def _mean_length(column: pa.ChunkedArray) -> float:
    return float(pc.mean(pc.utf8_length(plain(column))).as_py() or 0.0)


def _num_values(column: pa.ChunkedArray) -> int:
    try:
        return int(pc.count_distinct(column).as_py())
    except pa.ArrowNotImplementedError:  # lists and structs are no classes
        return len(column) + FEW_CLASSES


def _separator(names: list[str]) -> str | None:
    """A hint when the header was cut at the wrong character."""
    found = [word for separator, word in SEPARATORS.items() if len(names) == 1 and separator in names[0]]
    return f"the header looks separated by {found[0]}: name the file .csv" if found else None


def _headless(names: list[str]) -> str | None:
    """A hint when the first row is data."""
    if any(name.strip().lstrip("-").isdecimal() or len(name) > 60 or name.count(" ") > 4 for name in names):
        return "the first row looks like data, not like a header: put a row with the column names before it"
    return None


def _listed(names: list[str]) -> str:
    shown = [name if len(name) <= 60 else f"{name[:57]}..." for name in names]
    return listed(shown, 30)
