"""Reads csv and tsv strictly: a row with too few or too many fields is a fault, never shifted columns.

csv follows RFC 4180 (quoted fields may hold commas and line breaks); tsv has no quoting at all, a quote is a quote.
"""

import csv
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv

from train_func.errors import InvalidInput

MAX_SHOWN = 5
BLOCK = 16 << 20  # bytes; no row may be longer
OTHER_SEPARATORS = (";", "\t", "|")
_ONE_QUOTED = re.compile(r'"(?:[^"]|"")*"')


@dataclass(frozen=True)
class _Ragged:
    row: int
    found: int
    wanted: int
    text: str

    def __str__(self) -> str:
        return f"row {self.row} has {self.found} field{'s' * (self.found != 1)}, wanted {self.wanted}: {self.text!r}"


def read_delimited(path: Path, delimiter: str) -> pa.Table:
    """The table of a UTF-8 file whose first row is the header; a field that is empty in a number column is null.

    Raises:
        InvalidInput: empty file, a csv without commas, doubled column names, or rows with another number of fields than
            the header, the first five with their row number (the header is row 1) and the number of all.
    """
    if path.stat().st_size == 0:
        raise InvalidInput(f"{path}: the file is empty (0 bytes); a header and rows are wanted", cause="data")
    if delimiter == ",":
        _refuse_other_separators(path)
    ragged: list[Any] = []
    try:
        table = _parse(path, delimiter, ragged, in_order=False)
        if ragged:
            ragged.clear()
            _parse(path, delimiter, ragged, in_order=True)  # only then are the rows numbered
    except pa.ArrowInvalid as error:
        raise InvalidInput(f"{path}: {_unparsed(path, delimiter, error)}", cause="data") from None
    if ragged:
        raise InvalidInput(_ragged_fault(path, delimiter, ragged), cause="data")
    if doubled := sorted({name for name in table.column_names if table.column_names.count(name) > 1}):
        raise InvalidInput(
            f"{path}: the header names {', '.join(map(repr, doubled))} more than once; "
            f"columns: {', '.join(table.column_names)}",
            cause="data",
        )
    return table


def _refuse_other_separators(path: Path) -> None:
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        header = next((line for line in iter(lambda: file.readline(BLOCK), "") if line.strip()), "").rstrip("\n")
    likely = max(OTHER_SEPARATORS, key=header.count)
    if "," in header or likely not in header or _ONE_QUOTED.fullmatch(header.strip()):
        return
    rename = ", or name it .tsv" if likely == "\t" else ""
    raise InvalidInput(
        f"{path}: the separator looks like {likely!r}: the header is {_shortened(header)!r}; a csv has commas: "
        f"save it with commas{rename}",
        cause="data",
    )


def _parse(path: Path, delimiter: str, ragged: list[Any], *, in_order: bool) -> pa.Table:
    def note(row: Any) -> str:
        ragged.append(_Ragged(row.number or 0, row.actual_columns, row.expected_columns, _shortened(row.text)))
        return "skip"

    quoted = delimiter == ","
    return pacsv.read_csv(
        path,
        read_options=pacsv.ReadOptions(use_threads=not in_order, block_size=BLOCK),
        parse_options=pacsv.ParseOptions(
            delimiter=delimiter,
            quote_char='"' if quoted else False,
            double_quote=quoted,
            newlines_in_values=quoted,
            invalid_row_handler=note,
        ),
    )


def _ragged_fault(path: Path, delimiter: str, ragged: list[_Ragged]) -> str:
    ragged.sort(key=lambda row: row.row)
    shown = "; ".join(map(str, ragged[:MAX_SHOWN]))
    more = "" if len(ragged) <= MAX_SHOWN else f"; and {len(ragged) - MAX_SHOWN} more"
    advice = "a tab within a text has to become a space"
    if delimiter == ",":
        advice = 'a text that holds commas or line breaks has to stand in double quotes, a double quote in it as ""'
        if _open_quote(path):
            advice = f"the double quote opened in row {_open_quote(path)} is never closed"
    rows = "1 row has" if len(ragged) == 1 else f"{len(ragged)} rows have"
    return f"{path}: {rows} not as many fields as the header: {shown}{more} (the header is row 1); {advice}"


def _unparsed(path: Path, delimiter: str, error: Exception) -> str:
    if delimiter == "," and (row := _open_quote(path)):
        return f"the double quote opened in row {row} (the header is row 1) is never closed"
    if "Empty CSV" in str(error):
        return "the file holds no row; a header and rows are wanted"
    return f"cannot be read as {'csv' if delimiter == ',' else 'tsv'}: {error}; rows may have {BLOCK >> 20} MiB at most"


def _open_quote(path: Path) -> int | None:
    """The row in which a quoted field begins that the file's end cuts off."""
    csv.field_size_limit(1 << 40)
    num_rows = 0
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            for num_rows, _ in enumerate(csv.reader(file, strict=True), 1):  # noqa: B007
                pass
        except csv.Error as error:
            return num_rows + 1 if "unexpected end of data" in str(error) else None
    return None


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
