"""Columns of tables: found by their names, and judged as texts."""

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Tokenizer

from train_func.errors import InvalidInput
from train_func.text import are, in_rows, listed
from train_func.worker.inputs.delimited import SEPARATORS, is_spelled
from train_func.worker.inputs.findings import Findings
from train_func.worker.inputs.model import TOKENIZER
from train_func.worker.inputs.parquet_file import holds_bytes
from train_func.worker.inputs.reader import class_names

MANY_WORDS = 20.0  # mean characters from which a text column is rather the text than a class
FEW_CLASSES = 50
_LOOK = 1000  # rows looked at for a guess
TEXTS = ("text", "text_pair")  # columns, of which the second is there where texts are pairs
BETWEEN = " / "  # the texts of a pair
MOST_EMPTY = 0.05  # share of empty texts above which the column cannot be the right one
MOST_SHARED = 0.10  # share of held-out rows whose text is also trained on, above which the metric means little
SAMPLE = 1000  # texts whose lengths are measured; the share of cut ones is then known to some 3 %
MOST_CUT = 0.10  # share of cut texts above which a note says so
MEASURED = 100_000  # characters of a text whose tokens are counted, or more with a large max_length; 10 MB take long


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds texts."""
    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def plain(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Texts of any encoding as large_string."""
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    return values.cast(pa.large_string())


def column_fault(column: str, problem: str) -> InvalidInput:
    """The refusal of a column that cannot be what the task reads in it."""
    return InvalidInput(f"column {column!r}: {problem}", cause="data")


def names_of_classes(tables: Mapping[str, pa.Table], column: str) -> tuple[str, ...]:
    """The names that `datasets` keeps for the integers of a column, in the first table that has some."""
    return next((names for table in tables.values() if (names := class_names(table, column))), ())


def are_spelled(tables: Mapping[str, pa.Table], column: str) -> bool:
    """Whether texts of a column are a file's spelling of values that have no type there."""
    return any(is_spelled(table, column) for table in tables.values())


def missing_columns(table: pa.Table, where: str, wanted: Iterable[tuple[str, str]]) -> list[str]:
    """The faults of a ``table`` that lacks columns which a task names, by field (text or label), told once."""
    names = table.column_names
    lacking = [(field, name) for field, name in wanted if name not in names]
    if not lacking:
        return []
    if hint := _separator(names) or _headless(names):
        told = " and ".join(f"{name!r} ({field}={name!r})" for field, name in lacking)
        return [f"{where}: no column {told}; columns: {_listed(names)}; {hint}"]
    columns = f"; columns: {_listed(names) or 'none'}"
    faults = []
    for number, (field, name) in enumerate(lacking):
        close = difflib.get_close_matches(name, names, n=1) or _likely(table, field)
        meant = f"; did you mean {close[0]!r}? Then give {field}={close[0]!r}" if close else ""
        faults.append(f"{where}: no column {name!r} ({field}={name!r}){'' if number else columns}{meant}")
    return faults


def text_columns(table: pa.Table) -> list[str]:
    """Names of all columns that hold texts."""
    return [name for name in table.column_names if is_text(table.schema.field(name).type)]


def _likely(table: pa.Table, field: str) -> list[str]:
    """The column that looks most like texts, or most like classes."""
    head = table.slice(0, _LOOK)
    texts = sorted(((_mean_length(head[name]), name) for name in text_columns(table)), reverse=True)
    if field == "text":
        return [name for length, name in texts if length >= MANY_WORDS][:1]
    long = {name for length, name in texts if length >= MANY_WORDS}
    short = [of.name for of in table.schema if of.name not in long and not holds_bytes(of.type)]
    classes = [name for name in short if _num_values(head[name]) <= FEW_CLASSES]
    return classes if len(classes) == 1 else []


def _mean_length(column: pa.ChunkedArray) -> float:
    return float(pc.mean(pc.utf8_length(plain(column))).as_py() or 0.0)


def _num_values(column: pa.ChunkedArray) -> int:
    try:
        return int(pc.count_distinct(column).as_py())
    except pa.ArrowNotImplementedError:  # lists and structs are no classes
        return len(column) + FEW_CLASSES


def _separator(names: list[str]) -> str | None:
    """A hint when the header was cut at the wrong character."""
    found = [word for separator, word in SEPARATORS.items() if len(names) == 1 and separator in names[0]]
    return f"the header looks separated by {found[0]}: name the file .csv" if found else None


def _headless(names: list[str]) -> str | None:
    """A hint when the first row is data."""
    if any(name.strip().lstrip("-").isdecimal() or len(name) > 60 or name.count(" ") > 4 for name in names):
        return "the first row looks like data, not like a header: put a row with the column names before it"
    return None


def _listed(names: list[str]) -> str:
    shown = [name if len(name) <= 60 else f"{name[:57]}..." for name in names]
    return listed(shown, 30)


def judge_texts(table: pa.Table, column: str, part: str, findings: Findings) -> None:
    """Finds what is wrong with the text column of the rows called ``part`` ("training" or "held-out")."""
    values = table[column]
    if not is_text(values.type) and not pa.types.is_null(values.type):
        others = ", ".join(text_columns(table)) or "none"
        findings.fault(
            f"column {column!r}: {part} rows hold {values.type}, not texts; columns with texts: {others}; where these "
            "values are meant, write them as texts"
        )
        return
    if pa.types.is_null(values.type):
        findings.fault(f"column {column!r}: every text of the {part} rows is null or empty; name another column")
        return
    values = plain(values)
    nulls, remedy = _positions(pc.is_null(values)), "remove these rows or write an empty text there"
    findings.fault_rows(column, part, nulls, "{is} null", remedy, "text", len(values))
    empty = pc.fill_null(pc.equal(pc.utf8_trim_whitespace(values), ""), False)
    share = (pc.sum(empty).as_py() or 0) / max(1, len(values))
    if not share:
        return
    said = f"column {column!r}: {share:.1%} of the texts of the {part} rows are empty, {in_rows(_positions(empty))}"
    if share > MOST_EMPTY:
        findings.fault(f"{said}; at most {MOST_EMPTY:.0%} may be: remove these rows, or name another column")
    else:
        findings.note(f"{said}; they are trained on as they are")


def joined(rows: pa.Table) -> pa.ChunkedArray:
    """The text of every row, or both texts of a pair as one."""
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
    """Finds held-out texts that are trained on too; ``rows``: where the held-out ones stand."""
    same = pc.is_in(held_out, value_set=pc.unique(training)).to_numpy(zero_copy_only=False)
    num = int(same.sum())
    if not num:
        return
    share = num / len(held_out)
    said = (
        f"{num} of {len(held_out)} held-out {noun}s ({share:.1%}) {are(num)} in the training rows too, "
        f"{in_rows(rows[same])}"
    )
    if share > MOST_SHARED:
        findings.fault(
            f"{said}; above {MOST_SHARED:.0%} the metric says little: remove repeated {noun}s, or hold out others"
        )
    else:
        findings.note(f"{said}: the metric flatters a little")


def judge_equal_texts(texts: pa.ChunkedArray, codes: np.ndarray, names: tuple[str, ...], findings: Findings) -> None:
    """Notes equal texts with different labels."""
    groups = pa.table({"text": texts, "label": codes}).group_by("text").aggregate([("label", "count_distinct")])
    torn = groups.filter(pc.greater(groups["label_count_distinct"], 1))["text"]
    if not len(torn):
        return
    example = torn[0].as_py()
    found = np.unique(codes[pc.equal(texts, example).to_numpy()])
    labels = " and ".join(names[code] for code in found)
    findings.note(
        f"{len(torn)} training text(s) stand there with different labels, such as {example[:60]!r} with {labels}"
    )


def judge_lengths(table: pa.Table, folder: Path, max_length: int, findings: Findings) -> None:
    """Notes the lengths in tokens when many texts are cut, where the tokenizer in a model's folder is a single file.

    ``table``: with the column text, and text_pair where texts are pairs.
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
    texts = [pc.utf8_slice_codeunits(of, 0, num_letters).to_pylist() for of in columns]
    given = list(zip(*texts, strict=True)) if len(texts) > 1 else texts[0]
    lengths = np.array([len(one.ids) for one in tokenizer.encode_batch(given)])
    share = float((lengths > max_length).mean())
    if share <= MOST_CUT:
        return
    middle, most, longest = (int(np.percentile(lengths, of, method="higher")) for of in (50, 90, 100))
    more = " or more" if any(pc.max(pc.utf8_length(of)).as_py() > num_letters for of in columns) else ""
    spread = f"half have at most {middle} tokens, 90 % at most {most}, the longest {longest}{more}"
    left = f"{(lengths > most).mean():.0%}" if longest > most else "none"
    findings.note(
        f"max_length={max_length} cuts {share:.0%} of the texts: {spread}; max_length={most} would cut {left}"
    )


def _positions(mask: pa.ChunkedArray) -> np.ndarray:
    return np.flatnonzero(mask.to_numpy())
