"""Reads json (a list of objects) and jsonl (one object per line); what is wrong is named with its line or item."""

import io
import itertools
import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pajson

from train_func.errors import InvalidInput
from train_func.text import counted, listed
from train_func.worker.inputs.delimited import as_spelled

BLOCK = 64 << 20  # bytes; no line may be longer
DEEPEST = 500  # lists and objects in one another
_HALF = re.compile("[\ud800-\udfff]")  # of a pair of UTF-16
_TEXTS, _BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*+"'), re.compile(rb"[][{}]")
_BOM = b"\xef\xbb\xbf"
_KINDS = {str: "text", bool: "true/false", int: "number", float: "number", list: "list", dict: "object"}


class _Fraction(float):
    """A number as the file spells it: 1.0 and 1e2 are no whole numbers, as names of classes."""

    def __new__(cls, text: str) -> "_Fraction":
        made = super().__new__(cls, text)
        made.text = text
        return made

    text: str


_KINDS[_Fraction] = "number"


class _SameKey(ValueError):
    """Of two values under one key only one would be read."""


def read_json(path: Path, classes: Collection[str] = ()) -> pa.Table:
    """The table of a UTF-8 file that holds a list of objects, or one object per line; a missing key is null.

    A text stays a text, whatever it looks like. ``classes``: columns in which numbers, true and false are read as the
    texts that the file spells them with.

    Raises:
        InvalidInput: empty file, wrong JSON, rows that are no objects, a column with values of several kinds, values
            that are nested too deeply, texts with half a character.
    """
    data = path.read_bytes().removeprefix(_BOM)
    if not data.strip():
        raise InvalidInput(f"{path}: the file is empty; rows are expected", cause="data")
    try:
        return _read(path, data, classes)
    except RecursionError:
        raise _too_deep(str(path)) from None


def _read(path: Path, data: bytes, classes: Collection[str]) -> pa.Table:
    if data.lstrip()[:1] == b"[":
        return _table(path, _items(path, data), "item", classes)
    for number, line in enumerate(io.BytesIO(data), 1):
        if line.count(b"[") + line.count(b"{") > DEEPEST and _depth(line) > DEEPEST:
            raise _too_deep(f"{path}: line {number}")  # Arrow would end the process
    try:
        table = _parsed(data)
    except pa.ArrowInvalid:
        table = None  # Arrow counts rows per block; read again line by line to say where.
    if table is None:
        return _table(path, list(_lines(path, data)), "line", classes)
    spelled = [of.name for of in table.schema if of.name in classes and _is_of_numbers(of.type)]
    for name in spelled:
        texts = _spelled(data, name, table[name])
        if texts is None:
            return _table(path, list(_lines(path, data)), "line", classes)
        table = table.set_column(table.column_names.index(name), name, texts)
    return as_spelled(table, spelled)


def _spelled(data: bytes, name: str, values: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Numbers, true and false, or lists of them, as the texts of the file; None where Arrow does not tell which."""
    kind = values.type
    if not _has_fractions(kind):
        return values.cast(pa.list_(pa.string()) if pa.types.is_list(kind) else pa.string())
    if pa.types.is_list(kind):
        return None
    number = re.compile(re.escape(json.dumps(name, ensure_ascii=False).encode()) + rb"\s*:\s*(-?\d[\d.eE+-]*)")
    counts = Counter(match[1] for match in number.finditer(data))
    spellings = {float(text): text.decode() for text in counts}
    if counts.total() != len(values) - values.null_count or len(spellings) < len(counts):
        return None  # other objects have this key too, or one number is spelled in two ways
    texts = pc.take(pa.array(spellings.values(), pa.string()), pc.index_in(values, pa.array(spellings, pa.float64())))
    return texts if texts.null_count == values.null_count else None


def _parsed(data: bytes) -> pa.Table:
    """As Arrow reads it, which takes texts that look like dates for dates: then once more, with these as texts."""

    def read(schema: pa.Schema | None) -> pa.Table:
        block = pajson.ReadOptions(block_size=BLOCK)
        return pajson.read_json(io.BytesIO(data), block, pajson.ParseOptions(explicit_schema=schema))

    table = read(None)
    schema = pa.schema([of.with_type(_undated(of.type)) for of in table.schema])
    return table if schema == table.schema else read(schema)


def _undated(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([of.with_type(_undated(of.type)) for of in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_undated(kind.value_type)))
    return pa.string() if pa.types.is_temporal(kind) else kind


def _is_of_numbers(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_list(kind) else kind
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _has_fractions(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind.value_type if pa.types.is_list(kind) else kind))


def _depth(line: bytes) -> int:
    """Of the lists and objects in a line."""
    steps = (1 if found in b"[{" else -1 for found in _BRACKETS.findall(_TEXTS.sub(b"", line)))
    return max(itertools.accumulate(steps), default=0)


def _too_deep(where: str) -> InvalidInput:
    return InvalidInput(
        f"{where}: lists or objects are nested too deeply: at most {DEEPEST} in one another are expected; write what a "
        "task reads into columns of its own",
        cause="data",
    )


def _items(path: Path, data: bytes) -> list[tuple[int, Any]]:
    try:
        return list(enumerate(_loaded(data), 1))
    except ValueError as error:
        raise InvalidInput(f"{path}: wrong JSON: {error}", cause="data") from None


def _loaded(text: bytes) -> Any:
    return json.loads(text, parse_float=_Fraction, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        raise _SameKey(f"the key {next(name for name in names if names.count(name) > 1)!r} stands twice in one object")
    return made


def _lines(path: Path, data: bytes) -> Iterator[tuple[int, Any]]:
    faults = []
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            try:
                yield number, _loaded(line)
            except json.JSONDecodeError as error:
                faults.append(f"line {number}: {error.msg} at column {error.colno}")
            except _SameKey as error:
                faults.append(f"line {number}: {error}")
    if faults:
        raise InvalidInput(
            f"{path}: no JSON object in {counted(len(faults), 'line')}: {listed(faults, separator='; ')}; one object "
            "per line is expected, or one list of objects",
            cause="data",
        )


def _table(path: Path, rows: list[tuple[int, Any]], unit: str, classes: Collection[str]) -> pa.Table:
    if strangers := [f"{unit} {number}: {json.dumps(row)[:60]}" for number, row in rows if not isinstance(row, dict)]:
        raise InvalidInput(
            f"{path}: no object in {counted(len(strangers), unit)}: {listed(strangers, separator='; ')}; "
            'every row is expected as {"column": value, ...}',
            cause="data",
        )
    _refuse_halves(path, rows, unit)
    names = list(dict.fromkeys(name for _, row in rows for name in row))
    if faults := [fault for name in names if (fault := _mixed(rows, name, unit))]:
        raise InvalidInput([f"{path}: {fault}" for fault in faults], cause="data")
    columns = {name: [row.get(name) for _, row in rows] for name in names}
    spelled = [name for name in names if name in classes and _are_numbers(columns[name])]
    columns.update({name: _spelling(columns[name]) for name in spelled})
    try:
        table = pa.table({name: pa.array(values) for name, values in columns.items()})
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        faults = _mixed_within(rows, unit) or [f"cannot be read as a table: {error}"]
        raise InvalidInput([f"{path}: {fault}" for fault in faults], cause="data") from None
    return as_spelled(table, spelled)


def _are_numbers(values: list[Any]) -> bool:
    """Whether all values, or all in lists of them, are numbers, or all are true or false."""
    each = (of for value in values for of in (value if isinstance(value, list) else [value]) if of is not None)
    return {_KINDS[kind] for kind in set(map(type, each))} in ({"number"}, {"true/false"})


def _spelling(value: Any) -> Any:
    """The text of a number, true or false, or of each in a list; no number is null."""
    if isinstance(value, list):
        return [_spelling(of) for of in value]
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return None if value != value else getattr(value, "text", str(value))
    return None if value is None else str(value)


def _refuse_halves(path: Path, rows: list[tuple[int, Any]], unit: str) -> None:
    """A text that was cut within an emoji ends with half of it, which no encoding can write."""
    found = []
    for number, row in rows:
        if _HALF.search(json.dumps(row, ensure_ascii=False)):
            places = [where for where, value in _inner("", row) if isinstance(value, str) and _HALF.search(value)]
            found.append(f"{unit} {number} ({', '.join(map(repr, places)) or 'in a key'})")
    if found:
        raise InvalidInput(
            f"{path}: half a character, as \\ud83d alone is, in {counted(len(found), unit)}: "
            f"{listed(found, separator='; ')}; texts were cut within an emoji: cut them at whole characters, or remove "
            "these halves",
            cause="data",
        )


def _mixed(rows: list[tuple[int, Any]], name: str, unit: str) -> str | None:
    """The message when the values of a column are of several kinds."""
    first: dict[str, str] = {}
    for number, row in rows:
        if (value := row.get(name)) is not None:
            first.setdefault(_KINDS[type(value)], f"{unit} {number}: {json.dumps(value)[:40]}")
    return _mixture(f"column {name!r}", first)


def _mixture(where: str, first: Mapping[str, str]) -> str | None:
    """``first``: of each kind of value."""
    if len(first) <= 1:
        return None
    shown = "; ".join(f"{kind} ({where})" for kind, where in first.items())
    return f"{where} mixes {shown}; one kind per column is expected"


def _mixed_within(rows: list[tuple[int, Any]], unit: str) -> list[str]:
    """The messages of values inside of lists and objects that are of several kinds, as ``messages[].content``."""
    first: dict[str, dict[str, str]] = {}
    for number, row in rows:
        for where, value in _inner("", row):
            kinds = first.setdefault(where, {})
            if (kind := _KINDS[type(value)]) not in kinds:
                kinds[kind] = f"{unit} {number}: {json.dumps(value)[:40]}"
    return [fault for where, kinds in first.items() if (fault := _mixture(where, kinds))]


def _inner(where: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A value and all that are in it, but nulls, each with where it stands."""
    if value is None:
        return
    if where:
        yield where, value
    if isinstance(value, dict):
        for name, of in value.items():
            yield from _inner(f"{where}.{name}" if where else name, of)
    if isinstance(value, list):
        for of in value:
            yield from _inner(f"{where}[]", of)
