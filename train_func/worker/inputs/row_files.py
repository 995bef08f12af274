"""Reads files of rows strictly: csv, tsv, CoNLL, json, jsonl and Parquet; what is wrong is named with its place.

A row with too few or too many fields is a fault, never shifted columns. Every field is a text, as the file has it: what
is a number is for the task to say. csv follows RFC 4180 (quoted fields may hold separators and line breaks), and its
separator is the one that cuts the header into the columns that the task names; tsv has no quoting at all, a quote is a
quote. CoNLL has a word and its tag per line, and a blank line between sentences. The columns of bytes of a Parquet
file, such as images, may stay in it until they are read in pieces.
"""

import contextlib
import csv
import itertools
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from train_func.errors import InvalidInput
from train_func.text import COUNTED, counted, listed

SEPARATORS = (",", ";", "\t", "|")  # of a csv, the usual one first
_QUOTING = 'a text that holds separators or line breaks has to stand in double quotes, a double quote in it as ""'
ROWS_AT_ONCE = 50_000  # that are Python's texts; those before are a table
WORDS_AND_TAGS = ("tokens", "tags")
DOCUMENT = "-DOCSTART-"  # begins lines between documents, which are no words
IN_FILE = b"train_func.in_file"  # in the schema of a table: the file whose columns of bytes it has as nulls
PIECE = 32 * 2**20  # bytes of a column that are read at once, of rows of average size
BUFFER = 2**20  # bytes; without it the whole column of a row group is read at once
_BLANKS = re.compile(r"[ \t]+")


def read_csv(path: Path, columns: Collection[str] = ()) -> pa.Table:
    """Returns the table of a UTF-8 csv file; its separator is one that gives ``columns``, else the most columns.

    Raises:
        InvalidInput: as ``read_tsv``, or a field in double quotes is not closed or has text behind them, with its row.
        UnicodeDecodeError: the file is not UTF-8.
    """
    headers = {}
    for separator in SEPARATORS:
        try:
            headers[separator] = next(_rows(path, separator, quoted=True), [])
        except csv.Error:
            headers[separator] = []
    fits = [separator for separator, header in headers.items() if columns and {*columns} <= {*header}]
    # If none fits, the error that follows lists the columns of the likeliest one.
    return _read(path, fits[0] if fits else max(headers, key=lambda each: len(headers[each])), quoted=True)


def read_tsv(path: Path) -> pa.Table:
    """Returns the table of a UTF-8 file whose first row is the header.

    Raises:
        InvalidInput: the file is empty, a column name occurs twice, or rows have another number of fields than the
            header; the message names the first five of them by number, and how many there are.
        UnicodeDecodeError: the file is not UTF-8.
    """
    return _read(path, "\t", quoted=False)


def _rows(path: Path, separator: str, *, quoted: bool) -> Iterator[list[str]]:
    """Yields the rows that are not empty, the header first."""
    csv.field_size_limit(1 << 40)
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(
            file, delimiter=separator, quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE, strict=True
        )
        yield from filter(None, reader)


def _read(path: Path, separator: str, *, quoted: bool) -> pa.Table:
    rows = _rows(path, separator, quoted=quoted)
    num_rows, ragged = -1, []  # the header is no row
    pieces: list[pa.Table] = []
    piece: list[list[str]] = []
    header: list[str] = []
    try:
        for num_rows, row in enumerate(rows):
            if not num_rows:
                header = row
            elif len(row) == len(header):
                piece.append(row)
            else:
                shown = separator.join(row)[:60]
                ragged.append(f"row {num_rows} has {counted(len(row), 'field')}, expected {len(header)}: {shown!r}")
            if len(piece) == ROWS_AT_ONCE:
                pieces.append(_table(header, piece))
                piece = []
    except csv.Error as error:
        where = f"row {num_rows + 1} {COUNTED}" if num_rows >= 0 else "the header"
        raise InvalidInput(
            f"{path}: the double quotes in {where} are wrong: {error}; {_QUOTING}", cause="data"
        ) from None
    if num_rows < 0:
        raise InvalidInput(f"{path}: the file holds no row; a header and rows are expected", cause="data")
    if ragged:
        advice = _QUOTING if quoted else "a tab within a text has to become a space"
        raise InvalidInput(
            f"{path}: {counted(len(ragged), 'row')} with more or fewer fields than the header: "
            f"{listed(ragged, separator='; ')} {COUNTED}; {advice}",
            cause="data",
        )
    if len({*header}) < len(header):
        raise InvalidInput(
            f"{path}: the header names a column twice; columns: {', '.join(map(repr, header))}", cause="data"
        )
    return pa.concat_tables([*pieces, _table(header, piece)])


def _table(header: list[str], rows: list[list[str]]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [()] * len(header)
    return pa.Table.from_arrays([pa.array(column, pa.string()) for column in columns], names=header)


def read_conll(path: Path) -> pa.Table:
    """Returns a row for each sentence, with the columns ``tokens`` and ``tags``: lists of texts of equal length.

    The word is the first field of a line and the tag the last; fields are separated by spaces or tabs.

    Raises:
        InvalidInput: the file has no words, or a line has fewer than two fields or another number than the first line;
            the message names the line.
        UnicodeDecodeError: the file is not UTF-8.
    """
    lines = path.read_text(encoding="utf-8-sig").split("\n")
    fields = [_BLANKS.split(line.strip(" \t\r")) for line in lines]
    words = [None if not line[0] or line[0] == DOCUMENT else line for line in fields]
    num_fields = next((len(line) for line in words if line), 0)
    if not num_fields:
        raise InvalidInput(
            f"{path}: the file holds no words; a word and its tag are expected in each line", cause="data"
        )
    for number, line in enumerate(words, 1):
        if line and (len(line) != num_fields or num_fields < 2):
            raise InvalidInput(
                f"{path}: line {number} has {counted(len(line), 'field')}, expected are {max(num_fields, 2)}: "
                f"{lines[number - 1][:60]!r}; correct it, or write the sentences as lists into a jsonl file",
                cause="data",
            )
    sentences = [list(group) for has_words, group in itertools.groupby(words, bool) if has_words]
    kind = pa.list_(pa.string())
    return pa.table(
        {
            name: pa.array([[line[at] for line in sentence if line] for sentence in sentences], kind)
            for name, at in zip(WORDS_AND_TAGS, (0, -1), strict=True)
        }
    )


def read_json(path: Path) -> pa.Table:
    """Returns the table of a UTF-8 file with a list of objects, or one object per line; a missing key is null.

    A text stays a text, also if it looks like a number or a date.

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
            return _of_objects(path, "item", enumerate(_value(str(path), file.read()), 1))
        lines = ((number, line) for number, line in enumerate(file, 1) if not line.isspace())
        return _of_objects(path, "line", ((number, _value(f"{path}: line {number}", line)) for number, line in lines))


def _value(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(
            f"{where}: wrong JSON: {error}; one object per line is expected, or one list of objects", cause="data"
        ) from None


def _of_objects(path: Path, unit: str, rows: Iterable[tuple[int, Any]]) -> pa.Table:
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


def read_parquet(path: Path, *, leaves_bytes: bool) -> pa.Table:
    """Returns the rows; with ``leaves_bytes`` columns of bytes are null in every row, and ``values_of`` reads them.

    Raises:
        InvalidInput: (cause "data") the file is not whole.
    """
    with _whole(path):
        schema = parquet.read_schema(path)
        left = [field.name for field in schema if leaves_bytes and holds_bytes(field.type)]
        if not left:
            return parquet.read_table(path)
        read = parquet.read_table(path, columns=[name for name in schema.names if name not in left])
    columns = [pa.nulls(read.num_rows, column.type) if column.name in left else read[column.name] for column in schema]
    metadata = {**(schema.metadata or {}), IN_FILE: os.fsencode(path)}
    return pa.Table.from_arrays(columns, schema=schema.with_metadata(metadata))


def values_of(table: pa.Table, column: str) -> Iterator[pa.Scalar]:
    """Yields the values of a column; of a column that is still in a file, only a piece is in memory.

    Raises:
        InvalidInput: (cause "data") the file is not whole.
    """
    file = (table.schema.metadata or {}).get(IN_FILE)
    if file is None or not holds_bytes(table.schema.field(column).type):
        yield from table[column]
        return
    path = Path(os.fsdecode(file))
    with _whole(path), parquet.ParquetFile(path, buffer_size=BUFFER, pre_buffer=False) as opened:
        for number in range(opened.num_row_groups):
            group = opened.metadata.row_group(number)
            at_once = max(1, PIECE * group.num_rows // max(1, group.total_byte_size))
            for piece in opened.iter_batches(at_once, row_groups=[number], columns=[column], use_threads=False):
                yield from piece.column(0)


def holds_bytes(kind: pa.DataType) -> bool:
    """Returns whether values of this type are the bytes of files, or what `datasets` calls Image or Audio."""
    bytes_type = kind.field("bytes").type if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0 else kind
    return bool(
        pa.types.is_binary(bytes_type) or pa.types.is_large_binary(bytes_type) or pa.types.is_binary_view(bytes_type)
    )


@contextlib.contextmanager
def _whole(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise InvalidInput(f"{path}: not a whole Parquet file: {error}; write or copy it again", cause="data") from None
