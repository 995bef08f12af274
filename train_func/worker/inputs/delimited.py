"""Reads files of delimited fields strictly: csv, tsv and CoNLL.

A row with too few or too many fields is a fault, never shifted columns. Every field is a text, as the file has it: what
is a number is for the task to say. csv follows RFC 4180 (quoted fields may hold separators and line breaks), and its
separator is the one that cuts the header into the columns that the task names; tsv has no quoting at all, a quote is a
quote. CoNLL has a word and its tag per line, and a blank line between sentences.
"""

import csv
import itertools
import re
from collections.abc import Collection, Iterator
from pathlib import Path

import pyarrow as pa

from train_func.errors import InvalidInput
from train_func.text import COUNTED, counted, listed

SEPARATORS = (",", ";", "\t", "|")  # of a csv, the usual one first
_QUOTING = 'a text that holds separators or line breaks has to stand in double quotes, a double quote in it as ""'
ROWS_AT_ONCE = 50_000  # that are Python's texts; those before are a table
WORDS_AND_TAGS = ("tokens", "tags")
DOCUMENT = "-DOCSTART-"  # begins lines between documents, which are no words
_BLANKS = re.compile(r"[ \t]+")


def read_csv(path: Path, columns: Collection[str] = ()) -> pa.Table:
    """The table of a UTF-8 csv file; by ``columns`` its separator is known, or else by the number of columns it gives.

    Raises:
        InvalidInput: as ``read_tsv``, or a field in double quotes is never closed or goes on behind them, with its row.
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
    """The table of a UTF-8 file whose first row is the header.

    Raises:
        InvalidInput: empty file, doubled column names, or rows with another number of fields than the header, the
            first five with the number of the data row and the number of all.
        UnicodeDecodeError: the file is not UTF-8.
    """
    return _read(path, "\t", quoted=False)


def _rows(path: Path, separator: str, *, quoted: bool) -> Iterator[list[str]]:
    """Rows that are not empty, the header first."""
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
        raise InvalidInput(f"{path}: the header names a column twice; columns: {', '.join(header)}", cause="data")
    return pa.concat_tables([*pieces, _table(header, piece)])


def _table(header: list[str], rows: list[list[str]]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [()] * len(header)
    return pa.Table.from_arrays([pa.array(column, pa.string()) for column in columns], names=header)


def read_conll(path: Path) -> pa.Table:
    """A row for each sentence, with the columns ``tokens`` and ``tags``, lists of texts of the same length.

    The word is the first field of a line and the tag the last; fields are separated by spaces or tabs.

    Raises:
        InvalidInput: no words, or lines with fewer than two fields or another number than the first, with the number
            of the line.
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
