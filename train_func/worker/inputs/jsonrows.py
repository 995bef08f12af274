"""Reads json (a list of objects) and jsonl (one object per line); what is wrong is named with its line or item."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa

from train_func.errors import InvalidInput
from train_func.text import counted, listed

_HALF = re.compile("[\ud800-\udfff]")  # of a pair of UTF-16
_NUMBER, _BOOL = "number", "true/false"


_KINDS = {str: "text", bool: _BOOL, int: _NUMBER, float: _NUMBER, list: "list", dict: "object"}


def read_json(path: Path) -> pa.Table:
    """The table of a UTF-8 file that holds a list of objects, or one object per line; a missing key is null.

    A text stays a text, whatever it looks like.

    Raises:
        InvalidInput: empty file, wrong JSON, rows that are no objects, a column with values of several kinds, texts
            with half a character.
        UnicodeDecodeError: the file is not UTF-8.
    """
    decoder = json.JSONDecoder(object_pairs_hook=_object)
    with path.open(encoding="utf-8-sig", newline="\n") as file:
        start = next((line.lstrip() for line in file if not line.isspace()), "")
        if not start:
            raise InvalidInput(f"{path}: the file is empty; rows are expected", cause="data")
        file.seek(0)
        if start[0] == "[":
            return _table(path, _items(path, file, decoder), "item")
        return _table(path, _lines(path, file, decoder), "line")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuses a key that stands twice: only one of its values would be read."""
    row = dict(pairs)
    if len(row) < len(pairs):
        ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the key {name!r} stands twice in one object")
    return row


def _items(path: Path, file: TextIO, decoder: json.JSONDecoder) -> Iterable[tuple[int, Any]]:
    try:
        return enumerate(decoder.decode(file.read()), 1)
    except UnicodeDecodeError:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{path}: wrong JSON: {error}", cause="data") from None


def _lines(path: Path, file: TextIO, decoder: json.JSONDecoder) -> Iterator[tuple[int, Any]]:
    faults = []
    for number, line in enumerate(file, 1):
        if line.isspace():
            continue
        try:
            row = decoder.decode(line.rstrip("\n"))
        except json.JSONDecodeError as error:
            faults.append(f"line {number}: {error.msg} at column {error.colno}")
        except (ValueError, RecursionError) as error:
            faults.append(f"line {number}: {error}")
        else:
            yield number, row
    if faults:
        raise InvalidInput(
            f"{path}: no JSON object in {counted(len(faults), 'line')}: {listed(faults, separator='; ')}; one object "
            "per line is expected, or one list of objects",
            cause="data",
        )


def _table(path: Path, rows: Iterable[tuple[int, Any]], unit: str) -> pa.Table:
    places: list[str] = []
    columns: dict[str, list[Any]] = {}
    kinds: dict[str, dict[str, str]] = defaultdict(dict)  # of each column: its kinds of values, and the first of each
    strangers = []
    for number, row in rows:
        place = f"{unit} {number}"
        if not isinstance(row, dict):
            strangers.append(f"{place}: {json.dumps(row)[:60]}")
            continue
        for name, value in row.items():
            values = columns.setdefault(name, [])
            values += [None] * (len(places) - len(values))
            _add_kind(kinds[name], place, value)
            values.append(value)
        places.append(place)
    if strangers:
        raise InvalidInput(
            f"{path}: no object in {counted(len(strangers), unit)}: {listed(strangers, separator='; ')}; "
            'every row is expected as {"column": value, ...}',
            cause="data",
        )
    _refuse_mixtures(path, kinds)
    for values in columns.values():
        values += [None] * (len(places) - len(values))
    try:
        return pa.table({name: pa.array(values) for name, values in columns.items()})
    except (pa.ArrowException, UnicodeEncodeError, OverflowError) as error:
        _refuse_inner(path, places, columns)
        raise InvalidInput(f"{path}: cannot be read as a table: {error}", cause="data") from None


def _add_kind(kinds: dict[str, str], place: str, value: Any) -> None:
    if value is not None and (kind := _KINDS[type(value)]) not in kinds:
        kinds[kind] = f"{place}: {json.dumps(value)[:40]}"


def _refuse_mixtures(path: Path, kinds: dict[str, dict[str, str]]) -> None:
    faults = []
    for name, first in kinds.items():
        if len(first) > 1:
            shown = "; ".join(f"{kind} ({value})" for kind, value in first.items())
            faults.append(f"{path}: column {name!r} mixes {shown}; one kind per column is expected")
    if faults:
        raise InvalidInput(faults, cause="data")


def _refuse_inner(path: Path, places: list[str], columns: dict[str, list[Any]]) -> None:
    """Refuses what no table takes: halves of characters, and values of several kinds inside of lists and objects."""
    kinds: dict[str, dict[str, str]] = defaultdict(dict)
    halves: dict[str, list[str]] = defaultdict(list)
    for column, values in columns.items():
        for place, value in zip(places, values, strict=True):
            for name, each in _inner(column, value):
                _add_kind(kinds[name], place, each)
                if isinstance(each, str) and _HALF.search(each):
                    halves[place].append(repr(name))
    if halves:
        shown = listed([f"{place} ({', '.join(names)})" for place, names in halves.items()], separator="; ")
        raise InvalidInput(
            f"{path}: half a character, as \\ud83d alone is, in {shown}; texts were cut within an emoji: cut them at "
            "whole characters, or remove these halves",
            cause="data",
        )
    _refuse_mixtures(path, kinds)


def _inner(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A value and all that are in it, each with where it stands, as ``messages[].content``."""
    yield name, value
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _inner(f"{name}.{key}", each)
    if isinstance(value, list):
        for each in value:
            yield from _inner(f"{name}[]", each)
