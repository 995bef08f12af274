"""Turns a column of labels into class indices 0, 1, ... and their names, or says why it cannot be classes.

Integers are ordered as numbers and named by their digits, texts are ordered as texts. Texts that are a file's spelling
of values without a type keep it as their names, and are ordered as numbers where all are numbers. Names given in the
Run (or kept by `datasets` as ClassLabel) belong to the integers 0, 1, ... and fix the order of texts.
"""

import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from train_func.errors import InvalidInput
from train_func.text import COUNTED, are, counted, listed
from train_func.worker.inputs.findings import Findings
from train_func.worker.tasks.columns import column_fault, is_text, plain

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
YES_NO = {"false": Decimal(0), "true": Decimal(1)}


@dataclass(frozen=True)
class Labels:
    """Class names in the order of their indices, and the index of every row of every part (int64)."""

    names: tuple[str, ...]
    codes: Mapping[str, np.ndarray]
    notes: tuple[str, ...]


def encode(
    parts: Mapping[str, pa.ChunkedArray],
    column: str,
    *,
    given: Sequence[str] = (),
    kept: Sequence[str] = (),
    rows: Mapping[str, np.ndarray] | None = None,
    spelled: bool = False,
) -> Labels:
    """Classes of the ``column`` of each part, as "training" and "held-out", over all of them together.

    Args:
        given: names from the Run.
        kept: names that came with the data; ``given`` goes before.
        rows: the row of every label, from 0, where a row may have several.
        spelled: whether texts are a file's spelling of values that have no type there.

    Raises:
        InvalidInput: with every reason why these are no classes.
    """
    parts = _of_one_kind(parts, column, kept)
    is_boolean = all(pa.types.is_boolean(array.type) for array in parts.values())
    rows = rows or {part: np.arange(len(array)) for part, array in parts.items()}
    findings, values = Findings(), dict[str, pa.ChunkedArray]()
    for part, array in parts.items():
        if is_text(array.type):
            values[part] = plain(array)
            empty = pc.fill_null(pc.equal(pc.utf8_trim_whitespace(values[part]), ""), True)
        else:
            values[part] = pc.if_else(pc.is_nan(array), None, array) if _is_floating(array) else array
            empty = pc.is_null(values[part])
        places, remedy = rows[part][np.flatnonzero(empty.to_numpy())], "remove these rows or label them"
        findings.fault_rows(column, part, places, "{is} null or empty", remedy, "label", len(array))
    names = tuple(given) or tuple(kept)
    try:
        values = _with_names(_as_integers(values, column, rows), given, kept)
        has_free_texts = is_text(_type(values)) and not names
        if has_free_texts and spelled:
            values = _with_one_spelling(values, column, findings)
        distinct = sorted(_distinct(values))
        order: Sequence[object] = distinct
        if is_text(_type(values)):
            if has_free_texts:
                _refuse_strays(values, column, rows, WHOLE, "whole numbers")
                if have_decimal_commas(values.values()):
                    raise _are_numbers(column, "numbers with a decimal comma", distinct)
            if has_free_texts and spelled:
                _refuse_strays(values, column, rows, NUMBER, "numbers")
                order = distinct = _ordered(distinct, column)
            if strangers := sorted(set(distinct) - set(names)) if names else []:
                raise column_fault(
                    column,
                    f"labels {_shown(strangers)} are not among labels={names}; add them, or leave labels out to take "
                    "every text as a class",
                )
            order = names = names or tuple(distinct)
        else:
            order, names = _of_numbers(distinct, column, names, boolean=is_boolean, kept=kept)
        _refuse_what_is_no_class(distinct, sum(map(len, values.values())), column, named=bool(given or kept))
    except InvalidInput as refusal:
        findings.fault(*refusal.faults)
    findings.refuse()
    order = pa.array(order, _type(values))
    codes = {part: pc.index_in(array, value_set=order).to_numpy().astype(np.int64) for part, array in values.items()}
    _judge_names(names, codes, column, findings)
    return Labels(names, codes, tuple(findings.notes))


def _of_one_kind(parts: Mapping[str, pa.ChunkedArray], column: str, kept: Sequence[str]) -> dict[str, pa.ChunkedArray]:
    """The labels of all parts as texts or as numbers: where one file has texts and another numbers, as both can be."""
    for values in parts.values():
        kind = values.type
        is_number = pa.types.is_integer(kind) or _is_floating(values) or pa.types.is_boolean(kind)
        if not (is_text(kind) or is_number or pa.types.is_null(kind)):
            raise column_fault(
                column,
                f"labels are of type {kind}; one whole number or one text per row is expected, and lists of them only "
                "with problem_type='multi_label_classification'",
            )
    texts = {part: plain(values) for part, values in parts.items() if is_text(values.type)}
    if len(texts) in (0, len(parts)):
        return {**parts}
    if all(pc.all(pc.match_substring_regex(array, DIGITS)).as_py() is not False for array in texts.values()):
        return {**parts, **{part: array.cast(pa.int64()) for part, array in texts.items()}}
    return {part: texts[part] if part in texts else _digits(values, kept) for part, values in parts.items()}


def _is_floating(values: pa.ChunkedArray) -> bool:
    return bool(pa.types.is_floating(values.type))


def _digits(values: pa.ChunkedArray, kept: Sequence[str]) -> pa.ChunkedArray:
    """Numbers as texts: by the names that came with them, else by their digits."""
    names = dict(enumerate(kept))

    def text(value: object) -> str | None:
        if value is None or value != value:
            return None
        whole = int(value) if isinstance(value, float) and value.is_integer() else value
        return str(names.get(whole, whole)) if isinstance(whole, int) and not isinstance(value, bool) else str(whole)

    return pa.chunked_array([pa.array([text(value) for value in values.to_pylist()], pa.large_string())])


def _as_integers(
    parts: dict[str, pa.ChunkedArray], column: str, rows: Mapping[str, np.ndarray]
) -> dict[str, pa.ChunkedArray]:
    """Texts as they are; numbers as int64, which neither fractions nor infinities can be."""
    if is_text(_type(parts)):
        return parts
    integers, wrong = {}, []
    for part, values in parts.items():
        try:
            integers[part] = values.cast(pa.int64())
        except pa.ArrowInvalid:
            numbers = values.cast(pa.float64(), safe=False).to_numpy()
            with np.errstate(invalid="ignore"):
                fractions = numbers[np.isfinite(numbers) & (numbers != np.floor(numbers))]
                places = np.flatnonzero(np.isinf(numbers) | (np.abs(numbers) >= 2.0**63))
            if len(fractions):
                raise _are_numbers(column, "fractions", fractions.tolist()) from None
            wrong += [f"{numbers[at]:g} in row {rows[part][at] + 1} of the {part} rows" for at in places]
    if wrong:
        raise column_fault(
            column,
            f"{counted(len(wrong), 'label')} that no class can be: {listed(wrong)} {COUNTED}; correct or remove these "
            "rows, or write the classes as texts",
        )
    return integers


def _are_numbers(column: str, kind: str, values: Sequence[object]) -> InvalidInput:
    return column_fault(
        column,
        f"labels are {kind} ({_shown(values)}), and no classes: to predict numbers give problem_type='regression'; if "
        "they are meant as classes, write them as texts and name all with labels=(...)",
    )


def _with_names(
    values: dict[str, pa.ChunkedArray], given: Sequence[str], kept: Sequence[str]
) -> dict[str, pa.ChunkedArray]:
    """Each label as the name that means it, where all have one; else texts of numbers as these numbers.

    Integers that came with names stand for those, which names of the Run may put into another order.
    """
    are_texts, names = is_text(_type(values)), tuple(given) or tuple(kept)
    if not names or not (are_texts or given):
        return values
    distinct = _distinct(values)
    texts = distinct if are_texts else [kept[code] if 0 <= code < len(kept) else str(code) for code in distinct]
    meanings = [_meaning(name) for name in names]
    by_meaning = {key: name for key, name in zip(meanings, names, strict=True) if meanings.count(key) == 1}
    named = [text if text in names else by_meaning.get(_meaning(text)) for text in texts]
    if None not in named:
        return _mapped(values, dict(zip(distinct, named, strict=True)), pa.large_string())
    numbers = [number for text in texts if isinstance(number := _meaning(text), Decimal)]
    are_whole = all(abs(number) < 10**18 and number == number.to_integral_value() for number in numbers)
    if not are_texts or _are_values(names) or len(numbers) < len(texts) or not are_whole:
        return values
    return _mapped(values, dict(zip(distinct, map(int, numbers), strict=True)), pa.int64())


def _mapped(
    values: Mapping[str, pa.ChunkedArray], to: Mapping[Any, object], kind: pa.DataType
) -> dict[str, pa.ChunkedArray]:
    keys, replacements = pa.array([*to], _type(values)), pa.array([*to.values()], kind)
    return {part: pc.take(replacements, pc.index_in(array, value_set=keys)) for part, array in values.items()}


def _meaning(text: str) -> str | Decimal:
    """What two spellings of one label have in common: their number, or their letters; true is 1."""
    bare = text.strip().casefold()
    number = YES_NO.get(bare, number_in(bare))
    return bare if number is None else number


def _are_values(names: Sequence[str]) -> bool:
    """Whether names are numbers, true or false: by their place they could stand for another value than their own."""
    return any(isinstance(_meaning(name), Decimal) for name in names)


def _with_one_spelling(
    values: Mapping[str, pa.ChunkedArray], column: str, findings: Findings
) -> dict[str, pa.ChunkedArray]:
    """1.0 as 1 where there is 1 too: a program writes it so when other rows of a file have no label. ' 1' as 1 too."""
    spelling = {text: text for text in _distinct(values)}
    for text in spelling:
        if number_in(text) is None:
            continue
        short = re.sub(POINT, r"\1", text.strip(), flags=re.ASCII)
        spelling[text] = next((other for other in (short, text.strip()) if other in spelling), text)
    if changed := sorted(text for text in spelling if spelling[text] != text):
        shown = _shown(sorted(spelling[text] for text in changed))
        findings.note(f"column {column!r}: {_shown(changed)} are read as {shown}")
    return _mapped(values, spelling, pa.large_string())


def _type(values: Mapping[str, pa.ChunkedArray]) -> pa.DataType:
    return next(iter(values.values())).type


def _distinct(values: Mapping[str, pa.ChunkedArray]) -> list[Any]:
    """Every label once, over all parts, without null and empty ones."""
    chunks = [chunk for array in values.values() for chunk in array.chunks]
    labels = pc.unique(pa.chunked_array(chunks, _type(values))).to_pylist()
    return [label for label in labels if label is not None and str(label).strip()]


def _ordered(texts: list[str], column: str) -> list[str]:
    """Spelled labels as numbers where all are; raises InvalidInput where these are none of classes."""
    numbers = {text: number for text in texts if (number := number_in(text)) is not None}
    if len(numbers) < len(texts):
        return texts
    if fractions := [text for text, number in numbers.items() if number != number.to_integral_value()]:
        raise _are_numbers(column, "fractions", fractions)
    if all(re.fullmatch(DIGITS, text, re.ASCII) for text in texts):
        _refuse_marks([*map(int, texts)], column, named=False)
    return sorted(texts, key=lambda text: (numbers[text], text))


def _refuse_strays(
    values: Mapping[str, pa.ChunkedArray], column: str, rows: Mapping[str, np.ndarray], pattern: str, kind: str
) -> None:
    """Among labels that are nearly all numbers of a kind, a few others are slips of the pen rather than classes."""
    strays = [
        f"{array[at].as_py()!r} in row {rows[part][at] + 1} of the {part} rows"
        for part, array in values.items()
        for at in np.flatnonzero(~pc.fill_null(pc.match_substring_regex(array, pattern), True).to_numpy())
    ]
    num_strays, num_rows = len(strays), sum(map(len, values.values()))
    if 0 < num_strays <= STRAY_SHARE * num_rows:
        raise column_fault(
            column,
            f"{num_rows - num_strays} of {num_rows} labels are {kind}, {num_strays} {are(num_strays)} not: "
            f"{listed(strays, separator='; ')} {COUNTED}; correct or remove these rows, or name all classes with "
            "labels=(...) if they are meant",
        )


def _of_numbers(
    labels: list[int], column: str, names: tuple[str, ...], *, boolean: bool, kept: Sequence[str]
) -> tuple[list[int], tuple[str, ...]]:
    _refuse_marks(labels, column, named=bool(names))
    if not names or not labels:
        return labels, tuple(str(bool(value)) if boolean else str(value) for value in labels)
    if not kept and _are_values(names):
        strangers = [label for label in labels if Decimal(label) not in map(_meaning, names)] or labels
        raise column_fault(
            column,
            f"labels {_shown(strangers)} are not among labels={names}, of which some are numbers, true or false; name "
            "every label by its own value, or give names that are no numbers for 0, 1, ...",
        )
    low, high, last = labels[0], labels[-1], len(names) - 1
    if low < 0 or high > last:
        based = "; looks 1-based: subtract 1, or leave labels out" if (low, high) == (1, last + 1) else ""
        raise column_fault(
            column,
            f"label range {low}-{high}, expected 0-{last} for the {len(names)} names {names}"
            f"{based or '; give one name for each of the labels 0, 1, ..., or leave labels out'}",
        )
    return list(range(len(names))), names


def _refuse_marks(labels: list[int], column: str, *, named: bool) -> None:
    """Raises InvalidInput where integers stand for "no label"."""
    if IGNORED in labels:
        every = "every label is" if labels == [IGNORED] else "some labels are"
        raise column_fault(column, f"{every} {IGNORED}, which the loss ignores: nothing to learn from these rows")
    if labels == [UNLABELLED]:
        raise column_fault(
            column,
            f"every label is {UNLABELLED}, the mark of a split whose labels are kept secret; take another split",
        )
    if UNLABELLED in labels and (named or labels != [UNLABELLED, 1]):
        raise column_fault(
            column,
            f"labels {_shown(labels)}: {UNLABELLED} marks rows without a label; remove these rows, or, where "
            f"{UNLABELLED} is a class of its own, name all with labels=(...) as the texts they are, or write them as "
            "0, 1, ...",
        )


def _refuse_what_is_no_class(labels: Sequence[object], num_rows: int, column: str, *, named: bool) -> None:
    num_classes = len(labels)
    if num_classes == 1:
        raise column_fault(column, f"every label is {labels[0]!r}: one class leaves nothing to learn")
    least = ROWS_PER_CLASS if num_classes > MANY_CLASSES else 2 if num_classes > FEW_CLASSES else 1
    if num_classes > MAX_CLASSES or (not named and num_classes > 2 and num_rows <= num_classes * least):
        raise column_fault(
            column,
            f"{num_classes} different labels in {num_rows} rows ({_shown(labels)}): that looks like an id or a number "
            "to predict (problem_type='regression'), not like classes; name another column, or put the values into at "
            f"most {MAX_CLASSES} classes of more than {counted(least, 'row')} each on average",
        )


def _judge_names(names: tuple[str, ...], codes: Mapping[str, np.ndarray], column: str, findings: Findings) -> None:
    """Notes names without rows, and names that may be meant as one."""
    has_rows = set(np.unique(np.concatenate([*codes.values()])).tolist())
    if absent := [name for code, name in enumerate(names) if code not in has_rows]:
        findings.note(f"column {column!r}: no row has the label {_shown(absent)}: the model cannot learn it")
    folded: dict[object, list[str]] = {}
    for name in names:
        number = number_in(name)
        folded.setdefault(name.strip().casefold() if number is None else number, []).append(name)
    if alike := [group for group in folded.values() if len(group) > 1]:
        findings.note(
            f"column {column!r}: {_shown(alike)} differ only in case or spaces, or are the same number, and are "
            "classes of their own"
        )


def _shown(values: Sequence[object]) -> str:
    return listed(values, show=reprlib.repr)


def number_in(text: str) -> Decimal | None:
    """The number that a text is, with all its digits; None where it is none."""
    return Decimal(text.strip()) if re.fullmatch(NUMBER, text, re.ASCII) else None


def have_decimal_commas(columns: Iterable[pa.ChunkedArray]) -> bool:
    """Whether every text is a number with a decimal comma or a whole one, and one at least cannot mean thousands."""
    texts = [plain(values).drop_null() for values in columns if is_text(values.type)]
    every = (pc.all(pc.match_substring_regex(array, DECIMAL_COMMA)).as_py() for array in texts)
    return all(every) and any(pc.any(pc.match_substring_regex(array, _NO_THOUSANDS)).as_py() for array in texts)
