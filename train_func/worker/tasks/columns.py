"""Finds the text and the label column, and names the likely one when a wanted column is missing."""

import difflib

import pyarrow as pa
import pyarrow.compute as pc

MANY_WORDS = 20.0  # mean characters from which a text column is rather the text than a class
FEW_CLASSES = 50
_LOOK = 1000  # rows looked at for a guess


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds texts."""
    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def missing_column(table: pa.Table, where: str, field: str, wanted: str) -> str | None:
    """The fault of a ``table`` without the column that the task names in ``field`` (text or label), if it lacks it."""
    names = table.column_names
    if wanted in names:
        return None
    fault = f"{where}: no column {wanted!r} ({field}={wanted!r}); columns: {_listed(names) or 'none'}"
    if hint := _separator(names) or _headless(names):
        return f"{fault}; {hint}"
    close = difflib.get_close_matches(wanted, names, n=1) or _likely(table, field)
    return f"{fault}; did you mean {close[0]!r}? Then give {field}={close[0]!r}" if close else fault


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
    classes = [name for name in table.column_names if name not in long and _num_values(head[name]) <= FEW_CLASSES]
    return classes if len(classes) == 1 else []


def _mean_length(column: pa.ChunkedArray) -> float:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return float(pc.mean(pc.utf8_length(column)).as_py() or 0.0)


def _num_values(column: pa.ChunkedArray) -> int:
    try:
        return int(pc.count_distinct(column).as_py())
    except pa.ArrowNotImplementedError:  # lists and structs are no classes
        return len(column) + FEW_CLASSES


def _separator(names: list[str]) -> str | None:
    """A hint when the header was cut at the wrong character."""
    if len(names) != 1:
        return None
    for separator, word in ((";", "semicolons"), ("\t", "tabs"), (",", "commas"), ("|", "vertical bars")):
        if separator in names[0]:
            return f"the header looks separated by {word}: name the file {'.tsv' if separator == chr(9) else '.csv'}"
    return None


def _headless(names: list[str]) -> str | None:
    """A hint when the first row is data."""
    if any(name.strip().lstrip("-").isdecimal() or len(name) > 60 or name.count(" ") > 4 for name in names):
        return "the first row looks like data, not like a header: put a row with the column names before it"
    return None


def _listed(names: list[str]) -> str:
    shown = [name if len(name) <= 60 else f"{name[:57]}..." for name in names[:30]]
    return ", ".join(shown) + (f" and {len(names) - 30} more" if len(names) > 30 else "")
