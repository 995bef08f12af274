"""Turns a column of labels into class indices 0, 1, ... and their names, or says why it cannot be classes.

Integers are ordered as numbers and named by their digits, texts are ordered as texts. Texts that are a file's spelling
of values without a type keep it as their names, and are ordered as numbers where all are numbers. Names in the Run, or
those that `datasets` stores as ClassLabel, belong to the integers 0, 1, ... and fix the order of texts.

The values of all parts, training and held-out, follow one another in one array: the classes are those of all of them.
"""

import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from train_func.errors import InvalidInput
from train_func.text import MAX_SHOWN, are, counted, in_rows, listed
from train_func.worker.inputs.findings import Findings
from train_func.worker.tasks.columns import distinct, is_text, one_array, plain, values_in_rows

MAX_CLASSES = 1000
# Up to FEW_CLASSES one repeated label is enough; above, more than 2 rows of each class are expected on average, and
# above MANY_CLASSES more than ROWS_PER_CLASS: with fewer the column is rather a key.
FEW_CLASSES, MANY_CLASSES, ROWS_PER_CLASS = 20, 100, 10
STRAY_SHARE = 0.2  # up to this share, labels that are no numbers among numbers are faults
IGNORED = -100  # torch's loss leaves such rows out
UNLABELLED = -1  # marks rows of public test splits whose label is secret
WHOLE = r"^\s*[+-]?\d+\s*$"
DIGITS = r"^(-?[1-9]\d{0,17}|0)$"  # an integer as a program writes it
POINT = r"^(-?[1-9]\d*|0)\.0+$"  # one that had to be in a column of floats
# With a decimal comma; three digits behind it may also be thousands, unless a zero is before it.
DECIMAL_COMMA = r"^\s*[+-]?\d+(,\d+)?\s*$"
_NO_THOUSANDS = r"^\s*[+-]?(0,\d+|\d+,(\d{1,2}|\d{4,})|\d{4,},\d+)\s*$"
NUMBER = r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"
REGRESSION_OR_NAMES = (
    "and no classes: to predict numbers give problem_type='regression'; if they are meant as classes, name all with "
    "labels=(...)"
)
YES_NO = {"false": Decimal(0), "true": Decimal(1)}


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
    data_names: Sequence[str] = (),
    rows: Mapping[str, np.ndarray] | None = None,
    spelled: bool = False,
) -> Labels | None:
    """Returns the classes of the ``column`` of each part; None where it has faults, which ``findings`` gets.

    Args:
        parts: the column of the "training" and "held-out" rows.
        names: names from the Run.
        data_names: names that came with the data; ``names`` goes before.
        rows: the row of every label, from 0, where a row may have several.
        spelled: whether texts are a file's spelling of values that have no type there.
    """
    num_faults = len(findings.faults)
    rows = rows or {part: np.arange(len(values)) for part, values in parts.items()}
    for part, values in parts.items():
        is_empty = pc.is_null(values, nan_is_null=True)
        if is_text(values.type):
            is_empty = pc.fill_null(pc.equal(pc.utf8_trim_whitespace(plain(values)), ""), True)
        if num_empty := len(places := np.flatnonzero(is_empty.to_numpy())):
            findings.fault(
                f"column {column!r}: {num_empty} of {len(values)} labels of the {part} rows {are(num_empty)} null or "
                f"empty, {in_rows(rows[part][places])}; remove these rows or label them"
            )
    classes = findings.tried(lambda: _classes(parts, column, findings, tuple(names), tuple(data_names), rows, spelled))
    if classes is None or len(findings.faults) > num_faults:
        return None
    values, order, class_names = classes
    codes = pc.index_in(values, value_set=pa.array(order, values.type)).to_numpy().astype(np.int64)
    _note_names(class_names, codes, column, findings)
    ends = np.cumsum([len(part) for part in parts.values()])
    return Labels(class_names, dict(zip(parts, np.split(codes, ends[:-1]), strict=True)))


def _refusal(column: str, fault: str) -> InvalidInput:
    return InvalidInput(f"column {column!r}: {fault}", cause="data")


def _classes(
    parts: Mapping[str, pa.ChunkedArray],
    column: str,
    findings: Findings,
    names: tuple[str, ...],
    data_names: tuple[str, ...],
    rows: Mapping[str, np.ndarray],
    spelled: bool,
) -> tuple[pa.ChunkedArray, Sequence[object], tuple[str, ...]]:
    """Returns the values of all parts, every class among them in the order of the indices, and the names of these."""
    is_boolean = all(pa.types.is_boolean(values.type) for values in parts.values())
    values = _as_named(_in_one_array(parts, column, rows, data_names), names, data_names)
    fixed = names or data_names
    are_free_texts = is_text(values.type) and not fixed
    if are_free_texts and spelled:
        values = _with_one_spelling(values, column, findings)
    labels = sorted(distinct(values).to_pylist())
    if are_free_texts:
        _refuse_strays(values, column, rows, WHOLE, "whole numbers")
        if have_decimal_commas([values]):
            raise _refusal(column, f"labels are numbers with a decimal comma ({_shown(labels)}), {REGRESSION_OR_NAMES}")
        if spelled:
            _refuse_strays(values, column, rows, NUMBER, "numbers")
            labels = _ordered(labels, column)
    order: Sequence[object]
    if is_text(values.type):
        order = class_names = fixed or tuple(labels)
        if strangers := sorted({*labels} - {*class_names}):
            raise _refusal(
                column,
                f"labels {_shown(strangers)} are not among labels={fixed}; add them, or leave labels out to take every "
                "text as a class",
            )
    else:
        order, class_names = _of_numbers(labels, column, fixed, boolean=is_boolean, are_from_data=bool(data_names))
    num_classes, num_rows = len(labels), len(values)
    if num_classes == 1:
        raise _refusal(column, f"every label is {labels[0]!r}: one class leaves nothing to learn")
    least = ROWS_PER_CLASS if num_classes > MANY_CLASSES else 2 if num_classes > FEW_CLASSES else 1
    if num_classes > MAX_CLASSES or (not fixed and num_classes > 2 and num_rows <= num_classes * least):
        raise _refusal(
            column,
            f"{num_classes} different labels in {num_rows} rows ({_shown(labels)}): that looks like an id or a number "
            "to predict (problem_type='regression'), not like classes; name another column, or put the values into at "
            f"most {MAX_CLASSES} classes of more than {counted(least, 'row')} each on average",
        )
    return values, order, class_names


def _in_one_array(
    parts: Mapping[str, pa.ChunkedArray], column: str, rows: Mapping[str, np.ndarray], data_names: tuple[str, ...]
) -> pa.ChunkedArray:
    """Returns all labels as texts, or all as int64; where one file has texts and another numbers, as both can be."""
    texts, numbers = {}, {}
    for part, values in parts.items():
        kind = values.type
        if is_text(kind):
            texts[part] = plain(values)
        elif pa.types.is_floating(kind):
            numbers[part] = pc.if_else(pc.is_nan(values), None, values)
        elif pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind):
            numbers[part] = values
        else:
            raise _refusal(
                column,
                f"labels are of type {kind}; one whole number or one text per row is expected, and lists of them only "
                "with problem_type='multi_label_classification'",
            )
    if texts and numbers:
        if all(pc.all(pc.match_substring_regex(values, DIGITS)).as_py() is not False for values in texts.values()):
            numbers |= {part: values.cast(pa.int64()) for part, values in texts.items()}
        else:
            texts |= {part: _as_texts(values, data_names) for part, values in numbers.items()}
            numbers = {}
    if not numbers:
        return one_array({part: texts[part] for part in parts})
    whole, faults = {}, []
    for part in parts:
        try:
            whole[part] = numbers[part].cast(pa.int64())
        except pa.ArrowInvalid:
            floats = numbers[part].cast(pa.float64(), safe=False).to_numpy()
            with np.errstate(invalid="ignore"):
                fractions = floats[np.isfinite(floats) & (floats != np.floor(floats))].tolist()
                is_wrong = np.isinf(floats) | (np.abs(floats) >= 2.0**63)
            if fractions:
                faults.append(
                    f"column {column!r}: labels are fractions ({', '.join(map(str, fractions[:3]))}), and no classes: "
                    "to predict numbers give problem_type='regression'; else name another column, or write each as a "
                    "whole number or text"
                )
            if is_wrong.any():
                shown = values_in_rows(numbers[part], is_wrong, {part: rows[part]})
                faults.append(
                    f"column {column!r}: {counted(int(is_wrong.sum()), 'label')} that no class can be: {shown}; "
                    "correct or remove these rows, or write the classes as texts"
                )
    if faults:
        raise InvalidInput(faults, cause="data")
    return one_array(whole)


def _as_texts(numbers: pa.ChunkedArray, names: tuple[str, ...]) -> pa.ChunkedArray:
    """Returns numbers as texts: by the names that came with them, else by their digits."""
    name_of = {str(number): name for number, name in enumerate(names)}
    kind = numbers.type
    texts = [None if number is None else re.sub(POINT, r"\1", str(number)) for number in numbers.to_pylist()]
    named = texts if pa.types.is_boolean(kind) else [name_of.get(text or "", text) for text in texts]
    return pa.chunked_array([pa.array(named, pa.large_string())])


def _as_named(values: pa.ChunkedArray, names: tuple[str, ...], data_names: tuple[str, ...]) -> pa.ChunkedArray:
    """Returns each label as the name that means it, where all have one; else texts of numbers as these numbers.

    Integers that came with names stand for those, which names of the Run may put into another order.
    """
    are_texts, fixed = is_text(values.type), names or data_names
    if not fixed or not (are_texts or names):
        return values
    labels = distinct(values)
    name_of = dict(enumerate(data_names))
    texts = [label if are_texts else name_of.get(label, str(label)) for label in labels.to_pylist()]
    meanings = [_meaning(name) for name in fixed]
    by_meaning = {meaning: name for meaning, name in zip(meanings, fixed, strict=True) if meanings.count(meaning) == 1}
    named = [text if text in fixed else by_meaning.get(_meaning(text)) for text in texts]
    places = pc.index_in(values, value_set=labels)
    if None not in named:
        return pc.take(pa.array(named, pa.large_string()), places)
    numbers = [_meaning(text) for text in texts]
    are_indices = all(
        isinstance(number, Decimal) and abs(number) < 10**18 and number == number.to_integral_value()
        for number in numbers
    )
    if not are_texts or _are_values(fixed) or not are_indices:
        return values
    return pc.take(pa.array([int(number) for number in numbers], pa.int64()), places)


def _meaning(text: str) -> str | Decimal:
    """What two spellings of one label have in common: their number, or their letters; true is 1."""
    bare = text.strip().casefold()
    number = YES_NO.get(bare, number_in(bare))
    return bare if number is None else number


def _are_values(names: Sequence[str]) -> bool:
    """Whether names are numbers, true or false: by their place they could stand for another value than their own."""
    return any(isinstance(_meaning(name), Decimal) for name in names)


def _with_one_spelling(values: pa.ChunkedArray, column: str, findings: Findings) -> pa.ChunkedArray:
    """1.0 as 1 where there is 1 too: a program writes it so when other rows of a file have no label. ' 1' as 1 too."""
    texts = {*distinct(values).to_pylist()}
    spelling_of: dict[str, str] = {}
    for text in texts:
        bare = text.strip()
        short = re.sub(POINT, r"\1", bare, flags=re.ASCII)
        spelling = next((candidate for candidate in (short, bare) if candidate in texts), text)
        if spelling != text and number_in(text) is not None:
            spelling_of[text] = spelling
    if not spelling_of:
        return values
    before, after = (pa.array([*each], pa.large_string()) for each in (spelling_of, spelling_of.values()))
    shown, read = (_shown(sorted(each)) for each in (spelling_of, spelling_of.values()))
    findings.note(f"column {column!r}: {shown} are read as {read}")
    return pc.coalesce(pc.take(after, pc.index_in(values, value_set=before)), values)


def _ordered(labels: list[str], column: str) -> list[str]:
    """Spelled labels as numbers where all are; raises InvalidInput where these are none of classes."""
    numbers = {text: number for text in labels if (number := number_in(text)) is not None}
    if len(numbers) < len(labels):
        return labels
    if fractions := [text for text, number in numbers.items() if number != number.to_integral_value()]:
        raise _refusal(column, f"labels are fractions ({_shown(fractions)}), {REGRESSION_OR_NAMES}")
    if all(re.fullmatch(DIGITS, text, re.ASCII) for text in labels):
        _refuse_marks([*map(int, labels)], column, named=False)
    return sorted(labels, key=lambda text: (numbers[text], text))


def _refuse_strays(
    values: pa.ChunkedArray, column: str, rows: Mapping[str, np.ndarray], pattern: str, what: str
) -> None:
    """Among labels that are nearly all numbers of a kind, a few others are slips of the pen rather than classes."""
    is_stray = ~pc.fill_null(pc.match_substring_regex(values, pattern), True).to_numpy()
    num_strays, num_rows = int(is_stray.sum()), len(values)
    if 0 < num_strays <= STRAY_SHARE * num_rows:
        raise _refusal(
            column,
            f"{num_rows - num_strays} of {num_rows} labels are {what}, {num_strays} {are(num_strays)} not: "
            f"{values_in_rows(values, is_stray, rows)}; correct or remove these rows, or name all classes with "
            "labels=(...) if they are meant",
        )


def _of_numbers(
    labels: list[int], column: str, names: tuple[str, ...], *, boolean: bool, are_from_data: bool
) -> tuple[list[int], tuple[str, ...]]:
    _refuse_marks(labels, column, named=bool(names))
    if not names or not labels:
        return labels, tuple(str(bool(label)) if boolean else str(label) for label in labels)
    if not are_from_data and _are_values(names):
        strangers = [label for label in labels if Decimal(label) not in map(_meaning, names)] or labels
        raise _refusal(
            column,
            f"labels {_shown(strangers)} are not among labels={names}, of which some are numbers, true or false; name "
            "every label by its own value, or give names that are no numbers for 0, 1, ...",
        )
    low, high, last = labels[0], labels[-1], len(names) - 1
    if low < 0 or high > last:
        remedy = "; give one name for each of the labels 0, 1, ..., or leave labels out"
        if (low, high) == (1, last + 1):
            remedy = "; looks 1-based: subtract 1, or leave labels out"
        raise _refusal(
            column, f"label range {low}-{high}, expected 0-{last} for the {len(names)} names {names}{remedy}"
        )
    return list(range(len(names))), names


def _refuse_marks(labels: list[int], column: str, *, named: bool) -> None:
    """Refuses integers that stand for "no label"."""
    if IGNORED in labels:
        every = "every label is" if labels == [IGNORED] else "some labels are"
        raise _refusal(column, f"{every} {IGNORED}, which the loss ignores: nothing to learn from these rows")
    if labels == [UNLABELLED]:
        raise _refusal(
            column,
            f"every label is {UNLABELLED}, the mark of a split whose labels are kept secret; take another split",
        )
    if UNLABELLED in labels and (named or labels != [UNLABELLED, 1]):
        raise _refusal(
            column,
            f"labels {_shown(labels)}: {UNLABELLED} marks rows without a label; remove these rows, or, where "
            f"{UNLABELLED} is a class of its own, name all with labels=(...) as the texts they are, or write them as "
            "0, 1, ...",
        )


def _note_names(names: tuple[str, ...], codes: np.ndarray, column: str, findings: Findings) -> None:
    counts = np.bincount(codes, minlength=len(names))
    if absent := [name for name, count in zip(names, counts, strict=True) if not count]:
        findings.note(f"column {column!r}: no row has the label {_shown(absent)}: the model cannot learn it")
    by_meaning: dict[object, list[str]] = {}
    for name in names:
        by_meaning.setdefault(_meaning(name), []).append(name)
    if alike := [group for group in by_meaning.values() if len(group) > 1]:
        findings.note(
            f"column {column!r}: {_shown(alike)} differ only in case or spaces, or are the same number, and are "
            "classes of their own"
        )
    elif edged := [name for name in names if name != name.strip()]:
        findings.note(f"column {column!r}: the labels {_shown(edged)} have spaces at their ends, which are kept")


def _shown(values: Sequence[object]) -> str:
    return listed(values, MAX_SHOWN, show=reprlib.repr)


def number_in(text: str) -> Decimal | None:
    """The number that a text is, with all its digits; None where it is none."""
    return Decimal(text.strip()) if re.fullmatch(NUMBER, text, re.ASCII) else None


def have_decimal_commas(columns: Iterable[pa.ChunkedArray]) -> bool:
    """Whether every text is a number with a decimal comma or a whole one, and one at least cannot mean thousands."""
    texts = [plain(values).drop_null() for values in columns if is_text(values.type)]
    every = (pc.all(pc.match_substring_regex(column, DECIMAL_COMMA)).as_py() for column in texts)
    return all(every) and any(pc.any(pc.match_substring_regex(column, _NO_THOUSANDS)).as_py() for column in texts)
