"""Reads json (a list of objects) and jsonl (one object per line); what is wrong is named with its line or item."""

import io
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json as pajson

from train_func.counted import counted, listed
from train_func.errors import InvalidInput

BLOCK = 64 << 20  # bytes; no line may be longer
DEEPEST = 500  # lists and objects in one another
_TEXTS, _BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*+"'), re.compile(rb"[][{}]")
_BOM = b"\xef\xbb\xbf"
_KINDS = {str: "text", bool: "true/false", int: "number", float: "number", list: "list", dict: "object"}


def read_json(path: Path) -> pa.Table:
    """The table of a UTF-8 file that holds a list of objects, or one object per line; a missing key is null.

    Raises:
        InvalidInput: empty file, wrong JSON, rows that are no objects, a column with values of several kinds, values
            that are nested too deeply.
    """
    data = path.read_bytes().removeprefix(_BOM)
    if not data.strip():
        raise InvalidInput(f"{path}: the file is empty; rows are expected", cause="data")
    try:
        return _read(path, data)
    except RecursionError:
        raise _too_deep(str(path)) from None


def _read(path: Path, data: bytes) -> pa.Table:
    if data.lstrip()[:1] == b"[":
        rows = _items(path, data)
        return _table(path, rows, "item")
    for number, line in enumerate(io.BytesIO(data), 1):
        if line.count(b"[") + line.count(b"{") > DEEPEST and _depth(line) > DEEPEST:
            raise _too_deep(f"{path}: line {number}")  # Arrow would end the process
    try:
        return pajson.read_json(io.BytesIO(data), read_options=pajson.ReadOptions(block_size=BLOCK))
    except pa.ArrowInvalid:
        # Arrow counts rows per block; read again line by line to say where.
        return _table(path, list(_lines(path, data)), "line")


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
        return list(enumerate(json.loads(data), 1))
    except ValueError as error:
        raise InvalidInput(f"{path}: wrong JSON: {error}", cause="data") from None


def _lines(path: Path, data: bytes) -> Iterator[tuple[int, Any]]:
    faults = []
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except json.JSONDecodeError as error:
                faults.append(f"line {number}: {error.msg} at column {error.colno}")
    if faults:
        raise InvalidInput(
            f"{path}: no JSON object in {counted(len(faults), 'line')}: {listed(faults, separator='; ')}; one object "
            "per line is expected, or one list of objects",
            cause="data",
        )


def _table(path: Path, rows: list[tuple[int, Any]], unit: str) -> pa.Table:
    if strangers := [f"{unit} {number}: {json.dumps(row)[:60]}" for number, row in rows if not isinstance(row, dict)]:
        raise InvalidInput(
            f"{path}: no object in {counted(len(strangers), unit)}: {listed(strangers, separator='; ')}; "
            'every row is expected as {"column": value, ...}',
            cause="data",
        )
    names = list(dict.fromkeys(name for _, row in rows for name in row))
    if faults := [fault for name in names if (fault := _mixed(rows, name, unit))]:
        raise InvalidInput([f"{path}: {fault}" for fault in faults], cause="data")
    try:
        return pa.table({name: pa.array([row.get(name) for _, row in rows]) for name in names})
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        faults = _mixed_within(rows, unit) or [f"cannot be read as a table: {error}"]
        raise InvalidInput([f"{path}: {fault}" for fault in faults], cause="data") from None


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
