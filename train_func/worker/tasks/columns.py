"""Finds the columns of a table by name, and checks texts."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Tokenizer

from train_func.text import are, in_rows, listed, nearest
from train_func.worker.inputs.findings import Findings
from train_func.worker.inputs.model_folder import TOKENIZER
from train_func.worker.inputs.reader import class_names

Values = TypeVar("Values", pa.ChunkedArray, pa.Array)

TEXTS = ("text", "text_pair")  # columns, of which the second is there where texts are pairs
BETWEEN = " / "  # the texts of a pair
MOST_SHARED = 0.10  # share of held-out rows whose text is also trained on, above which the metric means little
SAMPLE = 1000  # texts whose lengths are measured; the share of cut ones is then known to some 3 %
MOST_CUT = 0.10  # share of cut texts above which a note says so
_DECIMAL_COMMA = re.compile(r"\s*[+-]?\d*,\d+\s*")
MEASURED = 100_000  # characters of a text whose tokens are counted, or more with a large max_length; 10 MB take long


def is_text(kind: pa.DataType) -> bool:
    """Returns whether a column of this type holds texts."""
    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_list(kind: pa.DataType) -> bool:
    """Returns whether a column of this type holds lists."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def plain(values: Values) -> Values:
    """Returns texts of any encoding as large_string."""
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    return values.cast(pa.large_string())


def one_array(parts: Mapping[str, pa.ChunkedArray]) -> pa.ChunkedArray:
    """Returns the values of all parts in one array, part after part; the parts have one type."""
    first, *_ = parts.values()
    return pa.chunked_array([chunk for values in parts.values() for chunk in values.chunks], first.type)


def distinct(values: pa.ChunkedArray) -> pa.Array:
    """Returns every value once, without nulls and blank texts."""
    each = pc.unique(values).drop_null()
    return each.filter(pc.not_equal(pc.utf8_trim_whitespace(each), "")) if is_text(each.type) else each


def is_blank(values: pa.ChunkedArray | pa.Array) -> np.ndarray:
    """Returns for each value whether it is null, NaN or a blank text."""
    blank = pc.is_null(values, nan_is_null=True)
    if is_text(values.type):
        blank = pc.fill_null(pc.equal(pc.utf8_trim_whitespace(plain(values)), ""), True)
    is_true: np.ndarray = blank.to_numpy(zero_copy_only=False)
    return is_true


def decimal_comma_remedy(text: str) -> str:
    """Returns what to do about numbers such as ``text``, which has a decimal comma; empty if it has none."""
    if not _DECIMAL_COMMA.fullmatch(text):
        return ""
    way = "give a DataFrame that pandas.read_csv(..., decimal=',') reads"
    return f"{text!r} has a decimal comma: write {text.strip().replace(',', '.')}, or {way}"


def names_of_classes(tables: Mapping[str, pa.Table], column: str) -> dict[str, tuple[str, ...]]:
    """Returns the names that `datasets` stores for the integers of a column, by part."""
    return {part: names for part, table in tables.items() if (names := class_names(table, column))}


def judge_columns(table: pa.Table, where: str, columns: Iterable[tuple[str, str]], findings: Findings) -> None:
    """Adds a fault for the ``columns``, by fields of the task, that the table does not have."""
    names = table.column_names
    if missing := [f"{name!r} ({field}={name!r})" for field, name in columns if name not in names]:
        shown = listed([name[:60] for name in names], 30, show=repr) or "none"
        near = dict.fromkeys(nearest(name, names) for _, name in columns if name not in names)
        meant = " and ".join(repr(name) for name in near if name is not None)
        question = f"did you mean {meant}? Its" if meant else "its"
        findings.fault(f"{where}: no column {' and '.join(missing)}; {question} columns are {shown}")


def judge_texts(table: pa.Table, column: str, part: str, findings: Findings) -> None:
    """Adds the faults of the text column of the rows called ``part`` ("training" or "held-out")."""
    kind, num_rows = table[column].type, table.num_rows
    if not is_text(kind):
        texts = [field.name for field in table.schema if is_text(field.type)]
        findings.fault(
            f"column {column!r}: {part} rows hold {kind}, not texts; columns with texts: "
            f"{listed(texts, 30, show=repr) or 'none'}; where these values are meant, write them as texts"
        )
        return
    is_null = pc.is_null(table[column]).to_numpy()
    remedy = "remove these rows or write an empty text there"
    findings.fault_rows(column, part, np.flatnonzero(is_null), "{is} null", remedy, "text", num_rows)
    empty = np.flatnonzero(is_blank(table[column]) & ~is_null)
    if len(empty):
        findings.note(
            f"column {column!r}: {len(empty) / num_rows:.1%} of the texts of the {part} rows are empty, "
            f"{in_rows(empty)}; they are trained on as they are"
        )


def joined(rows: pa.Table) -> pa.ChunkedArray:
    """Returns the text of every row, or both texts of a pair as one."""
    if "text_pair" not in rows.column_names:
        return rows["text"]
    return pc.binary_join_element_wise(rows["text"], rows["text_pair"], pa.scalar(BETWEEN, pa.large_string()))


def judge_overlap(
    training: pa.ChunkedArray | pa.Array,
    held_out: pa.ChunkedArray | pa.Array,
    rows: np.ndarray,
    findings: Findings,
    noun: str = "text",
) -> None:
    """Reports held-out texts that are also training texts; ``rows``: positions of the held-out texts."""
    same = pc.is_in(held_out, value_set=pc.unique(training)).to_numpy(zero_copy_only=False)
    num = int(same.sum())
    share = num / len(held_out)
    what = (
        f"{num} of {len(held_out)} held-out {noun}s ({share:.1%}) {are(num)} in the training rows too, "
        f"{in_rows(rows[same])}"
    )
    if share > MOST_SHARED:
        findings.fault(
            f"{what}; above {MOST_SHARED:.0%} the metric says little: remove repeated {noun}s, or hold out others"
        )
    elif num:
        findings.note(f"{what}: the metric is slightly too good")


def judge_equal(
    values: pa.ChunkedArray | pa.Array, codes: np.ndarray, rows: np.ndarray, findings: Findings, noun: str = "text"
) -> None:
    """Notes equal training texts with different labels; ``rows``: their positions."""
    table = pa.table({"value": values, "code": codes, "row": rows})
    groups = table.group_by("value").aggregate([("code", "count_distinct"), ("row", "min")])
    torn = groups.filter(pc.greater(groups["code_count_distinct"], 1))
    if torn.num_rows:
        findings.note(
            f"{torn.num_rows} training {noun}(s) occur with different labels, first "
            f"{in_rows(np.sort(torn['row_min'].to_numpy())[:1])}"
        )


def judge_lengths(table: pa.Table, folder: Path, max_length: int, findings: Findings) -> None:
    """Notes the lengths in tokens if many texts are cut; needs a tokenizer.json in the model's ``folder``.

    ``table``: has the column text, and text_pair for pairs.
    """
    path = folder / TOKENIZER
    if not path.is_file():
        return
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    rows = np.unique(np.linspace(0, table.num_rows - 1, SAMPLE).astype(np.int64))
    columns = [table[name].take(pa.array(rows)) for name in TEXTS if name in table.column_names]
    num_letters = max(MEASURED, 16 * max_length)  # a token has some 4
    texts = [pc.utf8_slice_codeunits(column, 0, num_letters).to_pylist() for column in columns]
    inputs = list(zip(*texts, strict=True)) if len(texts) > 1 else texts[0]
    lengths = np.array([len(encoding.ids) for encoding in tokenizer.encode_batch(inputs)])
    share = float((lengths > max_length).mean())
    if share > MOST_CUT:
        most, longest = (int(np.percentile(lengths, percent, method="higher")) for percent in (90, 100))
        findings.note(
            f"max_length={max_length} cuts {share:.0%} of the texts: 90 % have at most {most} tokens, the longest "
            f"{longest}"
        )
