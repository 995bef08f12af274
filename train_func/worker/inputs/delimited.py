"""Reads files of delimited fields strictly: csv, tsv and CoNLL.

A row with too few or too many fields is a fault, never shifted columns. Every field is a text, as the file has it: what
is a number is for the task to say. csv follows RFC 4180 (quoted fields may hold separators and line breaks), and its
separator is the one that cuts the header into the wanted columns; tsv has no quoting at all, a quote is a quote. CoNLL
has a word and its tag per line, and a blank line between sentences.
"""

import contextlib
import csv
import itertools
import mmap
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv

from train_func.errors import InvalidInput
from train_func.text import COUNTED, counted, listed

_SPELLED = {b"train_func.spelled": b"1"}  # in the metadata of a field
BLOCK = 16 << 20  # bytes; no row may be longer
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}  # of a csv, the usual one first
WORDS_AND_TAGS = ("tokens", "tags")
DOCUMENT = "-DOCSTART-"  # begins lines between documents, which are no words
_BLANKS = re.compile(r"[ \t]+")


def as_spelled(table: pa.Table, names: Collection[str]) -> pa.Table:
    """The table with these columns known as spelled: a text there may be meant as a number."""
    fields = [field.with_metadata(_SPELLED) if field.name in names else field for field in table.schema]
    return pa.Table.from_arrays(table.columns, schema=pa.schema(fields, table.schema.metadata))


def is_spelled(table: pa.Table, name: str) -> bool:
    """Whether the texts of a column are such a spelling, and no values of type text."""
    return (table.schema.field(name).metadata or {}).items() >= _SPELLED.items()


def read_csv(path: Path, wanted: Collection[str] = ()) -> pa.Table:
    """The table of a UTF-8 csv file; ``wanted`` are the columns by which its separator is known.

    Raises:
        InvalidInput: as ``read_tsv``, or more than one separator fits, or a quoted field goes on behind its quotes.
    """
    separator = _separator(path, frozenset(wanted))
    if row := _broken_quotes(path, separator):
        raise InvalidInput(
            f"{path}: in {row} {COUNTED} a field in double quotes goes on behind them; a double quote within such a "
            'field is written "", and no backslash stands before it: write the file anew so, as pandas and Excel do',
            cause="data",
        )
    return _read(path, separator, quoted=True)


def read_tsv(path: Path) -> pa.Table:
    """The table of a UTF-8 file whose first row is the header.

    Raises:
        InvalidInput: empty file, doubled column names, or rows with another number of fields than the header, the
            first five with the number of the data row and the number of all.
    """
    return _read(path, "\t", quoted=False)


def _read(path: Path, delimiter: str, *, quoted: bool) -> pa.Table:
    ragged: list[tuple[int, str]] = []  # the number of each row, and what is said of it
    try:
        table = _parse(path, delimiter, ragged, quoted=quoted, in_order=False)
        if ragged:
            ragged.clear()
            _parse(path, delimiter, ragged, quoted=quoted, in_order=True)  # only then are the rows numbered
    except pa.ArrowInvalid as error:
        raise InvalidInput(f"{path}: {_unparsed(path, delimiter, error, quoted=quoted)}", cause="data") from None
    if ragged:
        raise InvalidInput(_ragged_fault(path, delimiter, ragged, quoted=quoted), cause="data")
    if doubled := sorted({name for name in table.column_names if table.column_names.count(name) > 1}):
        raise InvalidInput(
            f"{path}: the header names {', '.join(map(repr, doubled))} more than once; "
            f"columns: {', '.join(table.column_names)}",
            cause="data",
        )
    return as_spelled(table, table.column_names)


def _separator(path: Path, wanted: frozenset[str]) -> str:
    """The separator whose header holds the wanted columns; of several the one under which all rows are whole.

    Where no header holds them, the one with most columns: the error that follows lists its columns.
    """
    headers = {separator: next(_rows(path, separator), []) for separator in SEPARATORS}
    fits = [separator for separator, header in headers.items() if wanted and wanted <= set(header)]
    if not fits:
        return max(SEPARATORS, key=lambda separator: len(headers[separator]))
    if len(fits) == 1:
        return fits[0]
    whole = [one for one in fits if all(len(row) == len(headers[one]) for row in _rows(path, one))]
    if len(whole) > 1:
        raise InvalidInput(
            f"{path}: it can be read with {' and with '.join(SEPARATORS[one] for one in whole)} between its columns, "
            f"and has {', '.join(map(repr, sorted(wanted)))} either way; write it anew with commas, and with double "
            "quotes around texts that hold one",
            cause="data",
        )
    return (whole or fits)[0]


def _rows(path: Path, separator: str) -> Iterator[list[str]]:
    """Rows that are not empty, as far as quotes are closed."""
    csv.field_size_limit(1 << 40)
    with path.open(encoding="utf-8-sig", newline="") as file, contextlib.suppress(csv.Error):
        yield from filter(None, csv.reader(file, delimiter=separator, strict=True))


def _parse(path: Path, delimiter: str, ragged: list[tuple[int, str]], *, quoted: bool, in_order: bool) -> pa.Table:
    def note(row: Any) -> str:
        text = row.text if len(row.text) <= 60 else f"{row.text[:57]}..."
        number = (row.number or 1) - 1  # Arrow's has the header, and is known only where rows are read in order
        fields = f"{counted(row.actual_columns, 'field')}, expected {row.expected_columns}"
        ragged.append((number, f"row {number} has {fields}: {text!r}"))
        return "skip"

    def form(handler: Any) -> pacsv.ParseOptions:
        return pacsv.ParseOptions(
            delimiter=delimiter,
            quote_char='"' if quoted else False,
            double_quote=quoted,
            newlines_in_values=quoted,
            invalid_row_handler=handler,
        )

    options = pacsv.ReadOptions(use_threads=not in_order, block_size=BLOCK)
    with pacsv.open_csv(path, read_options=options, parse_options=form(lambda row: "skip")) as opened:
        texts = dict.fromkeys(opened.schema.names, pa.string())
    convert = pacsv.ConvertOptions(column_types=texts, strings_can_be_null=False)
    return pacsv.read_csv(path, read_options=options, parse_options=form(note), convert_options=convert)


def _ragged_fault(path: Path, delimiter: str, ragged: list[tuple[int, str]], *, quoted: bool) -> str:
    shown = listed([said for _, said in sorted(ragged)], separator="; ")
    advice = "a tab within a text has to become a space"
    if quoted:
        held = f"{SEPARATORS[delimiter]} or line breaks"
        advice = f'a text that holds {held} has to stand in double quotes, a double quote in it as ""'
        if row := _open_quote(path, delimiter):
            advice = f"the double quote opened in {row} is never closed"
    rows = "1 row has" if len(ragged) == 1 else f"{len(ragged)} rows have"
    return f"{path}: {rows} not as many fields as the header: {shown} {COUNTED}; {advice}"


def _unparsed(path: Path, delimiter: str, error: Exception, *, quoted: bool) -> str:
    if quoted and (row := _open_quote(path, delimiter)):
        return f"the double quote opened in {row} {COUNTED} is never closed"
    if "Empty CSV" in str(error):
        return "the file holds no row; a header and rows are expected"
    return f"cannot be read as {'csv' if quoted else 'tsv'}: {error}; rows may have {BLOCK >> 20} MiB at most"


def _open_quote(path: Path, delimiter: str) -> str | None:
    """The row, in words, in which a quoted field begins that the file's end cuts off."""
    return _quoting(path, delimiter, "unexpected end of data")


def _broken_quotes(path: Path, delimiter: str) -> str | None:
    """The row, in words, in which something stands between a quoted field's end and the next separator."""
    around = re.escape(delimiter.encode()) + rb'"\r\n'
    with path.open("rb") as file, contextlib.suppress(ValueError), mmap.mmap(file.fileno(), 0, access=1) as data:
        if re.search(rb'"(?:(?<=\\")|(?<=[^%b]")(?=[^%b]))' % (around, around), data):
            return _quoting(path, delimiter, "expected after")
    return None


def _quoting(path: Path, delimiter: str, problem: str) -> str | None:
    """The row, in words, at which Python's reader ends with this problem."""
    csv.field_size_limit(1 << 40)
    num_rows = 0
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            for row in csv.reader(file, delimiter=delimiter, strict=True):
                num_rows += bool(row)  # empty lines are none
        except csv.Error as error:
            if problem in str(error):
                return f"row {num_rows}" if num_rows else "the header"
    return None


def read_conll(path: Path) -> pa.Table:
    """A row for each sentence, with the columns ``tokens`` and ``tags``, lists of texts of the same length.

    The word is the first field of a line and the tag the last; fields are separated by spaces or tabs.

    Raises:
        InvalidInput: no words, or lines with fewer than two fields or another number than the first, with the number
            of the line.
    """
    lines = path.read_text(encoding="utf-8-sig").split("\n")
    fields = [_BLANKS.split(line.strip(" \t\r")) for line in lines]
    words = [None if not line[0] or line[0] == DOCUMENT else line for line in fields]
    wanted = next((len(line) for line in words if line), 0)
    if not wanted:
        raise InvalidInput(
            f"{path}: the file holds no words; a word and its tag are expected in each line", cause="data"
        )
    wrong = [
        f"line {number} has {counted(len(line), 'field')}: {lines[number - 1][:60]!r}"
        for number, line in enumerate(words, 1)
        if line and (len(line) != wanted or wanted < 2)
    ]
    if wrong:
        expected = f"{wanted}, as in the first" if wanted > 1 else "a word and its tag"
        raise InvalidInput(
            f"{path}: {counted(len(wrong), 'line')} with a wrong number of fields ({expected}, expected): "
            f"{listed(wrong, separator='; ')}; correct them, or write the sentences as lists into a jsonl file",
            cause="data",
        )
    sentences = [list(group) for has_words, group in itertools.groupby(words, bool) if has_words]
    kind = pa.list_(pa.string())
    table = pa.table(
        {
            name: pa.array([[line[at] for line in sentence if line] for sentence in sentences], kind)
            for name, at in zip(WORDS_AND_TAGS, (0, -1), strict=True)
        }
    )
    return as_spelled(table, WORDS_AND_TAGS)
