"""Turns columns into any number of labels per row: lists, texts with | between the labels, or columns of 0 and 1."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from train_func.counted import COUNTED, MAX_SHOWN, are, counted, in_rows, listed
from train_func.errors import InvalidInput
from train_func.worker.tasks.columns import is_text, plain
from train_func.worker.tasks.labels import Labels, encode
from train_func.worker.tasks.numbers import number_in

SEPARATOR = "|"  # a comma or a semicolon often separates the columns of the file

FIRM, LOOSE = ",;\n\t", " /&+"  # what may stand between labels where there is no bar, or also within one
BRACKETS = {("[", "]"), ("{", "}"), ("<", ">"), ("(", ")")}
MARKS = {"0": 0.0, "0.0": 0.0, "false": 0.0, "1": 1.0, "1.0": 1.0, "true": 1.0}  # as files spell them


def encode_lists(
    parts: Mapping[str, pa.ChunkedArray],
    column: str,
    *,
    given: Sequence[str] = (),
    kept: Sequence[str] = (),
    spelled: bool = False,
) -> Labels:
    """The labels of the lists in ``column``; an empty list, or an empty text, is a row without any.

    Args:
        parts: the column of each part, as "training" and "held-out".
        given: names from the Run.
        kept: names that came with the data; ``given`` goes before.
        spelled: whether labels are a file's spelling of values that have no type there.

    Returns:
        Codes of shape (rows, labels), 1 where a row has the label, else 0.

    Raises:
        InvalidInput: with every reason why these are no labels.
    """
    lists = {part: _lists(values, column, part) for part, values in parts.items()}
    notes = _joined(parts, column, given, spelled=spelled)
    if faults := [fault for part, values in lists.items() if (fault := _null_fault(values, column, part))]:
        raise InvalidInput(faults, cause="data")
    rows = {part: values.value_parent_indices().to_numpy() for part, values in lists.items()}
    each = {part: pa.chunked_array([values.flatten()]) for part, values in lists.items()}
    if not any(len(values) for values in each.values()):
        raise InvalidInput(f"column {column!r}: no row has any label; name another column", cause="data")
    found = encode(each, column, given=given, kept=kept, rows=rows, spelled=spelled)
    codes = {}
    for part, values in lists.items():
        codes[part] = np.zeros((len(values), len(found.names)), dtype=np.uint8)
        codes[part][rows[part], found.codes[part]] = 1
    return Labels(found.names, codes, (*notes, *found.notes))


def encode_columns(tables: Mapping[str, pa.Table], columns: tuple[str, ...]) -> Labels:
    """A label for each of the columns, which hold 1 (or true) where a row has it; returns and raises as above."""
    faults = [
        fault for part, table in tables.items() for name in columns if (fault := _mark_fault(table[name], name, part))
    ]
    if faults:
        raise InvalidInput(faults, cause="data")
    codes = {part: np.stack([_marks(table[name]) for name in columns], axis=1) for part, table in tables.items()}
    counts = np.sum([of_part.sum(axis=0) for of_part in codes.values()], axis=0)
    absent = [name for name, count in zip(columns, counts, strict=True) if not count]
    if len(absent) == len(columns):
        raise InvalidInput(f"label={columns}: no row has a 1 in any of these columns; name other columns", cause="data")
    notes = [f"column {name!r}: no row has a 1: the model cannot learn this label" for name in absent]
    return Labels(columns, {part: of_part.astype(np.uint8) for part, of_part in codes.items()}, tuple(notes))


def _lists(values: pa.ChunkedArray, column: str, part: str) -> pa.ListArray | pa.LargeListArray:
    if is_text(values.type):
        cut = pc.split_pattern(plain(values), SEPARATOR)
        return _without_blanks(_one(cut))
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        return _one(values)
    if pa.types.is_fixed_size_list(values.type):
        return _one(values.cast(pa.list_(values.type.value_type)))
    raise InvalidInput(_no_lists(values.type, column, part), cause="data")


def _no_lists(held: object, column: str, part: str) -> str:
    return (
        f"column {column!r}: {part} rows hold {held}; with several labels per row a list is expected in each, a "
        f"text with {SEPARATOR} between the labels, or label=('toxic', 'insult') with columns of 0 and 1"
    )


def _joined(parts: Mapping[str, pa.ChunkedArray], column: str, given: Sequence[str], *, spelled: bool) -> list[str]:
    """Notes on texts of which none has a bar; raises InvalidInput where these can hardly be one label each."""
    if not all(is_text(values.type) for values in parts.values()):
        return []
    found = {text.strip() for values in parts.values() for text in pc.unique(plain(values)).drop_null().to_pylist()}
    found.discard("")
    if not found or any(SEPARATOR in text for text in found):
        return []
    if spelled and not given and all(number_in(text) is not None for text in found):
        raise InvalidInput(_no_lists("numbers", column, next(iter(parts))), cause="data")
    several = sorted(text for text in found - set(given) if len(_pieces(text, FIRM)) > 1)
    sure = likely_several(found, given)
    advice = f"write {SEPARATOR} between labels, as db{SEPARATOR}ui, or give lists"
    if sure:
        raise InvalidInput(
            f"column {column!r}: no text has {SEPARATOR} in it, and {len(sure)} of {len(found)} different ones look "
            f"like several labels in one: {listed(sorted(sure), MAX_SHOWN, show=repr)}; {advice}; where such a "
            "text is one label, name all with labels=(...)",
            cause="data",
        )
    shown = listed(several, MAX_SHOWN, show=repr)
    return [f"column {column!r}: read as one label each: {shown}; else {advice}"] if several and not given else []


def likely_several(found: set[str], given: Sequence[str] = (), separators: str = FIRM) -> set[str]:
    """Those of different texts that are several labels in one: their parts are labels elsewhere too."""
    pieces = {text: _pieces(text, separators) for text in found}
    several = {text for text in found - set(given) if len(pieces[text]) > 1}
    names = set(given) or found
    loose = {text for text in found - set(given) if len(each := _pieces(text, LOOSE)) > 1 and each <= names}
    if given:
        return loose | {text for text in several if pieces[text] <= names}
    if all((text[0], text[-1]) in BRACKETS for text in found):
        return found
    shared = Counter(piece for held in pieces.values() for piece in held)
    return loose | {text for text in several if any(shared[piece] > 1 for piece in pieces[text])}


def _pieces(text: str, separators: str) -> set[str]:
    return {piece for part in re.split(f"[{separators}]", text) if (piece := part.strip())}


def _one(values: pa.ChunkedArray) -> pa.ListArray | pa.LargeListArray:
    return pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)


def _without_blanks(lists: pa.ListArray | pa.LargeListArray) -> pa.ListArray:
    """Labels without the spaces around them; of an empty text none."""
    labels = pc.utf8_trim_whitespace(lists.flatten())
    keep = pc.not_equal(labels, "").to_numpy(zero_copy_only=False)
    rows = lists.value_parent_indices().to_numpy()[keep]
    offsets = np.searchsorted(rows, np.arange(len(lists) + 1))
    is_null = pc.is_null(lists).to_numpy(zero_copy_only=False)
    made = pa.LargeListArray.from_arrays(pa.array(offsets), labels.filter(pa.array(keep)))
    return pc.if_else(pa.array(~is_null), made, pa.scalar(None, made.type)) if is_null.any() else made


def _null_fault(lists: pa.ListArray, column: str, part: str) -> str | None:
    rows = np.flatnonzero(pc.is_null(lists).to_numpy(zero_copy_only=False))
    if not len(rows):
        return None
    have = "has" if len(rows) == 1 else "have"
    return (
        f"column {column!r}: {len(rows)} of {len(lists)} {part} rows {have} null in place of labels, {in_rows(rows)}; "
        "give an empty list where a row has no label, or remove these rows"
    )


def _mark_fault(values: pa.ChunkedArray, column: str, part: str) -> str | None:
    kind = values.type
    if not (is_text(kind) or pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return f"column {column!r}: {part} rows hold {kind}; 0 or 1 is expected in each where label= names columns"
    marks = _marks(values)
    wrong = np.flatnonzero((marks != 0) & (marks != 1))
    if not len(wrong):
        return None
    shown = "; ".join(f"{values[row].as_py()!r} in row {row + 1}" for row in wrong[:MAX_SHOWN].tolist())
    return (
        f"column {column!r}: {counted(len(wrong), 'value')} of the {part} rows {are(len(wrong))} neither 0 nor 1: "
        f"{shown} {COUNTED}"
    )


def _marks(values: pa.ChunkedArray) -> np.ndarray:
    """As float64, what is no number as NaN."""
    if is_text(values.type):
        return np.array([MARKS.get((text or "").strip().lower(), np.nan) for text in values.to_pylist()])
    whole = values.cast(pa.int8()) if pa.types.is_boolean(values.type) else values
    found: np.ndarray = whole.cast(pa.float64(), safe=False).to_numpy()
    return found
