"""Reads the CoNLL text format: a word and its tag per line, a blank line between sentences."""

import itertools
import re
from pathlib import Path

import pyarrow as pa

from train_func.counted import counted, listed
from train_func.errors import InvalidInput
from train_func.worker.inputs.spelling import as_spelled

COLUMNS = ("tokens", "tags")
DOCUMENT = "-DOCSTART-"  # begins lines between documents, which are no words
_BLANKS = re.compile(r"[ \t]+")


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
            for name, at in zip(COLUMNS, (0, -1), strict=True)
        }
    )
    return as_spelled(table, COLUMNS)
