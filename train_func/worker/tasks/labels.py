"""Turns a column of labels into class indices 0, 1, ... and their names, or says why it cannot be classes.

Whole numbers, also those that a file spells as texts, are ordered as numbers and named by their digits. Other texts are
ordered as texts. Names in the Run, or those that `datasets` stores as ClassLabel, belong to the integers 0, 1, ... and
fix the order of texts. Each part may have names of its own, as two data sets have: the same name is the same class.

The values of all parts, training and held-out, are in one array, so that the classes are those of all rows.
"""

import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from train_func.errors import InvalidInput
from train_func.text import MAX_SHOWN, listed
from train_func.worker.inputs.findings import Findings
from train_func.worker.tasks.columns import decimal_comma_remedy, distinct, is_blank, is_text, one_array, plain

MAX_CLASSES = 1000  # with more the column is rather a key
INTEGER = r"^\s*(-?[1-9]\d{0,17}|0)(\.0+)?\s*$"  # as a program writes it, also into a column of floats
_NUMBER = re.compile(r"\s*[+-]?(\d+|\d*[.,]\d+)\s*")
_BOOLEANS = ("False", "True")
_WHOLE = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_null)  # types that may hold them


@dataclass(frozen=True)
class Labels:
    """Class names in the order of their indices, and the index of every row of every part (int64)."""

    names: tuple[str, ...]
    codes: Mapping[str, np.ndarray]


def encode(
    parts: Mapping[str, pa.ChunkedArray],
    column: str,
    findings: Findings,
    *,
    names: Sequence[str] = (),
    data_names: Mapping[str, tuple[str, ...]] | None = None,
    rows: Mapping[str, np.ndarray] | None = None,
) -> Labels | None:
    """Returns the classes of the ``column`` of each part; None if it has faults, which are added to ``findings``.

    Args:
        parts: the column of the "training" and "held-out" rows.
        names: names from the Run.
        data_names: names that came with a part; ``names`` takes precedence.
        rows: the row of every label, from 0, if a row may have several.
    """
    num_faults = len(findings.faults)
    for part, values in parts.items():
        empty = np.flatnonzero(is_blank(values))
        empty_rows = rows[part][empty] if rows else empty
        remedy = "remove these rows or label them"
        findings.fault_rows(column, part, empty_rows, "{is} null or empty", remedy, "label", len(values))
    if len(findings.faults) > num_faults:
        return None
    return findings.attempt(lambda: _labels(parts, column, findings, tuple(names), data_names or {}))


def _labels(
    parts: Mapping[str, pa.ChunkedArray],
    column: str,
    findings: Findings,
    names: tuple[str, ...],
    names_of_parts: Mapping[str, tuple[str, ...]],
) -> Labels:
    longest = max(names_of_parts.values(), key=len, default=())
    if all(
        longest[: len(part_names)] == part_names for part_names in names_of_parts.values()
    ):  # they number the classes alike
        names_of_parts = dict.fromkeys(names_of_parts, longest)
    data_names = tuple(dict.fromkeys(chain.from_iterable(names_of_parts.values())))
    if all(pa.types.is_boolean(values.type) for values in parts.values()):
        data_names = data_names or _BOOLEANS
    values = _in_one_array(parts, column, names, {part: names_of_parts.get(part, data_names) for part in parts})
    labels = sorted(distinct(values).to_pylist())
    if len(labels) == 1:
        raise _refusal(column, f"every label is {labels[0]!r}: one class leaves nothing to learn")
    fixed = names or data_names
    if not fixed and (len(labels) > MAX_CLASSES or 2 < len(values) == len(labels)):
        raise _refusal(
            column,
            f"{len(labels)} different labels in {len(values)} rows ({_shown(labels)}): that looks like an id or a "
            "number to predict (problem_type='regression'), not like classes; name another column, or all classes "
            "with labels=(...)",
        )
    indices = _indices(labels, names, data_names, column) if fixed else [*range(len(labels))]
    class_names = fixed or tuple(map(str, labels))
    if absent := [name for index, name in enumerate(class_names) if index not in indices]:
        findings.note(f"column {column!r}: no row has the label {_shown(absent)}: the model cannot learn it")
    places = pc.index_in(values, value_set=pa.array(labels, values.type)).to_numpy()
    codes = np.array(indices, np.int64)[places]
    ends = np.cumsum([len(part) for part in parts.values()])
    return Labels(class_names, dict(zip(parts, np.split(codes, ends[:-1]), strict=True)))


def _refusal(column: str, fault: str) -> InvalidInput:
    return InvalidInput(f"column {column!r}: {fault}", cause="data")


def _in_one_array(
    parts: Mapping[str, pa.ChunkedArray],
    column: str,
    names: tuple[str, ...],
    data_names: Mapping[str, tuple[str, ...]],
) -> pa.ChunkedArray:
    """Returns all labels as int64; as texts if the parts name integers differently, or one of them has texts."""
    arrays = {}
    for part, values in parts.items():
        kind = values.type
        if is_text(kind):
            arrays[part] = _integers_of(plain(values), column, names, data_names[part])
        elif any(is_kind(kind) for is_kind in _WHOLE):
            try:
                arrays[part] = values.cast(pa.int64())
            except pa.ArrowException:
                raise _refusal(
                    column,
                    f"labels of the {part} rows are no whole numbers ({_shown(pc.unique(values).to_pylist())}), and "
                    "no classes: to predict numbers give problem_type='regression'; else write each as a whole number "
                    "or text",
                ) from None
        else:
            raise _refusal(
                column,
                f"labels are of type {kind}; one whole number or one text per row is expected, and lists of them only "
                "with problem_type='multi_label_classification'",
            )
    if len({values.type for values in arrays.values()}) > 1 or len({*data_names.values()}) > 1:
        for part, values in arrays.items():
            if not is_text(values.type):
                texts = [_text_of(number, data_names[part]) for number in values.to_pylist()]
                arrays[part] = pa.chunked_array([pa.array(texts, pa.large_string())])
    return one_array(arrays)


def _integers_of(
    texts: pa.ChunkedArray, column: str, names: tuple[str, ...], data_names: tuple[str, ...]
) -> pa.ChunkedArray:
    """Returns texts as integers if all are spelt so, unless all are names of classes; otherwise unchanged."""
    each = distinct(texts)
    spellings = each.to_pylist()
    if not spellings or {*spellings} <= {*names, *data_names}:
        return texts
    if pc.all(pc.match_substring_regex(each, INTEGER)).as_py():
        return pc.replace_substring_regex(pc.utf8_trim_whitespace(texts), r"\.0+$", "").cast(pa.int64())
    are_numbers = all(map(_NUMBER.fullmatch, spellings))
    if are_numbers and not (names or data_names) and any("." in text or "," in text for text in spellings):
        if remedy := next(filter(None, map(decimal_comma_remedy, spellings)), ""):
            what = "labels are fractions, which are predicted with problem_type='regression'"
            raise _refusal(column, f"{what}. {remedy}; if they are meant as classes, name all with labels=(...)")
        raise _refusal(
            column,
            f"labels are fractions ({_shown(spellings)}), and no classes: to predict numbers give "
            "problem_type='regression'; if they are meant as classes, name all with labels=(...)",
        )
    return texts


def _text_of(number: int, data_names: tuple[str, ...]) -> str:
    return data_names[number] if 0 <= number < len(data_names) else str(number)


def _indices(
    labels: Sequence[int | str], names: tuple[str, ...], data_names: tuple[str, ...], column: str
) -> Sequence[int]:
    """Returns the index of each label: the position of its name, or the integer itself."""
    order = names or data_names
    texts = [label if isinstance(label, str) else _text_of(label, data_names) for label in labels]
    if {*texts} <= {*order}:
        return [order.index(text) for text in texts]
    numbers = [label for label in labels if isinstance(label, int)]
    are_values = any(_NUMBER.fullmatch(name) or name.strip().title() in _BOOLEANS for name in names)
    if are_values or not numbers:  # a name that is a value could stand for another one by its place
        strangers = [text for text in texts if text not in order]
        raise _refusal(
            column,
            f"labels {_shown(strangers)} are not among labels={order}; add them, or leave labels out to take every "
            "value as a class"
            if names
            else f"labels {_shown(strangers)} are not among the names that the data has for its integers, {order}; "
            "remove or correct these rows",
        )
    low, high, last = numbers[0], numbers[-1], len(order) - 1
    if low < 0 or high > last:
        raise _refusal(
            column,
            f"label range {low}-{high}, expected 0-{last} for the {len(order)} names {order}; give one name for each "
            "of the labels 0, 1, ..., or leave labels out",
        )
    return numbers


def _shown(values: Sequence[object]) -> str:
    return listed(values, MAX_SHOWN, show=reprlib.repr)
