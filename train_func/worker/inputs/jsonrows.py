"""Reads json (a list of objects) and jsonl (one object per line); what is wrong is named with its line or item."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from train_func.errors import InvalidInput


def read_json(path: Path) -> pa.Table:
    """The table of a UTF-8 file that holds a list of objects, or one object per line; a missing key is null.

    A text stays a text, whatever it looks like.

    Raises:
        InvalidInput: empty file, wrong JSON, a row that is no object, a column with values of several kinds.
        UnicodeDecodeError: the file is not UTF-8.
    """
    with path.open(encoding="utf-8-sig", newline="\n") as file:
        start = next((line.lstrip() for line in file if not line.isspace()), "")
        if not start:
            raise InvalidInput(f"{path}: the file is empty; rows are expected", cause="data")
        file.seek(0)
        if start[0] == "[":
            return _table(path, "item", enumerate(_value(str(path), file.read()), 1))
        lines = ((number, line) for number, line in enumerate(file, 1) if not line.isspace())
        return _table(path, "line", ((number, _value(f"{path}: line {number}", line)) for number, line in lines))


def _value(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(
            f"{where}: wrong JSON: {error}; one object per line is expected, or one list of objects", cause="data"
        ) from None


def _table(path: Path, unit: str, rows: Iterable[tuple[int, Any]]) -> pa.Table:
    columns: dict[str, list[Any]] = {}
    num_rows = 0
    for number, row in rows:
        if not isinstance(row, dict):
            raise InvalidInput(
                f'{path}: {unit} {number}: {json.dumps(row)[:60]} is no object, as {{"column": value, ...}}',
                cause="data",
            )
        for name, value in row.items():
            values = columns.setdefault(name, [])
            values += [None] * (num_rows - len(values))
            values.append(value)
        num_rows += 1
    arrays, faults = {}, []
    for name, values in columns.items():
        values += [None] * (num_rows - len(values))
        try:
            arrays[name] = pa.array(values)
        except (pa.ArrowException, UnicodeEncodeError, OverflowError) as error:
            kinds = ", ".join(sorted({type(value).__name__ for value in values}))
            faults.append(f"{path}: column {name!r}: its values ({kinds}) are not of one kind: {error}")
    if faults:
        raise InvalidInput(faults, cause="data")
    return pa.table(arrays)
