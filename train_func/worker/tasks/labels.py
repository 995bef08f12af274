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

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from train_func.errors import InvalidInput
from train_func.text import COUNTED, MAX_SHOWN, are, counted, in_rows, listed
from train_func.worker.tasks.columns import is_text, plain

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
    is_boolean = all(pa.types.is_boolean(values.type) for values in parts.values())
    filled = {part: _with_nulls(values) for part, values in parts.items()}
    rows = rows or {part: np.arange(len(values)) for part, values in parts.items()}
    faults = [fault for part, values in filled.items() if (fault := _null_fault(values, column, part, rows[part]))]
    names = tuple(given) or tuple(kept)
    notes: list[str] = []
    try:
        values = _named(_plain(filled, column, rows), given, kept)
        has_free_texts = is_text(_type(values)) and not names
        if has_free_texts and spelled:
            values, notes = _with_one_spelling(values, column)
        distinct = _distinct(values)
        found = sorted(distinct.to_pylist())
        order: Sequence[object]
        if is_text(distinct.type):
            if has_free_texts:
                _refuse_strays(values, column, rows, WHOLE, "whole numbers")
                _refuse_decimal_commas(values, column, found)
            if has_free_texts and spelled:
                _refuse_strays(values, column, rows, NUMBER, "numbers")
                found = _ordered(found, column)
            order, names = _of_texts(found, column, names)
        else:
            order, names = _of_numbers(found, column, names, boolean=is_boolean, kept=kept)
        num_rows = sum(map(len, values.values()))
        _refuse_what_is_no_class(found, num_rows, column, named=bool(given or kept))
    except InvalidInput as refused:
        faults += refused.faults
    if faults:
        raise InvalidInput(faults, cause="data")
    codes = {part: _indices(array, order) for part, array in values.items()}
    return Labels(names, codes, (*notes, *_notes(names, codes, column)))


def _of_one_kind(
    parts: Mapping[str, pa.ChunkedArray], column: str, kept: Sequence[str]
) -> Mapping[str, pa.ChunkedArray]:
    """The labels of all parts as texts or as numbers: where one file has texts and another numbers, as both can be."""
    if wrong := [values.type for values in parts.values() if _family(values.type) == "other"]:
        raise InvalidInput(
            f"column {column!r}: labels are of type {wrong[0]}; one whole number or one text per row is expected, and "
            "lists of them only with problem_type='multi_label_classification'",
            cause="data",
        )
    texts = {part: plain(values) for part, values in parts.items() if _family(values.type) == "text"}
    if len(texts) in (0, len(parts)):
        return parts
    if all(pc.all(pc.match_substring_regex(of, DIGITS)).as_py() is not False for of in texts.values()):
        return {**parts, **{part: of.cast(pa.int64()) for part, of in texts.items()}}
    return {part: texts[part] if part in texts else _digits(values, kept) for part, values in parts.items()}


def _digits(values: pa.ChunkedArray, kept: Sequence[str]) -> pa.ChunkedArray:
    """Numbers as texts: by the names that came with them, else by their digits."""
    names = dict(enumerate(kept))

    def text(value: object) -> str | None:
        if value is None or value != value:
            return None
        whole = int(value) if isinstance(value, float) and value.is_integer() else value
        return str(names.get(whole, whole)) if isinstance(whole, int) and not isinstance(value, bool) else str(whole)

    return pa.chunked_array([pa.array([text(value) for value in values.to_pylist()], pa.large_string())])


def _named(
    values: Mapping[str, pa.ChunkedArray], given: Sequence[str], kept: Sequence[str]
) -> Mapping[str, pa.ChunkedArray]:
    """Each label as the name that means it, where all have one; else texts of numbers as these numbers.

    Integers that came with names stand for those, which names of the Run may put into another order.
    """
    are_texts, names = is_text(_type(values)), tuple(given) or tuple(kept)
    if not names or not (are_texts or given):
        return values
    found = _distinct(values).to_pylist()
    texts = found if are_texts else [kept[of] if 0 <= of < len(kept) else str(of) for of in found]
    meanings = [_meaning(name) for name in names]
    by_meaning = {of: name for of, name in zip(meanings, names, strict=True) if meanings.count(of) == 1}
    named = [text if text in names else by_meaning.get(_meaning(text)) for text in texts]
    if None not in named:
        return _mapped(values, found, pa.array(named, pa.large_string()))
    numbers = [_meaning(text) for text in texts]
    if not are_texts or _are_values(names) or not all(_is_index(of) for of in numbers):
        return values
    return _mapped(values, found, pa.array([int(of) for of in numbers], pa.int64()))


def _mapped(values: Mapping[str, pa.ChunkedArray], found: Sequence[object], to: pa.Array) -> dict[str, pa.ChunkedArray]:
    """``values``, each of those in ``found`` as the one at its place in ``to``."""
    plain_values = {part: plain(of) if is_text(of.type) else of for part, of in values.items()}
    order = pa.array(found, _type(plain_values))
    return {part: pc.take(to, pc.index_in(of, value_set=order)) for part, of in plain_values.items()}


def _meaning(text: str) -> str | Decimal:
    """What two spellings of one label have in common: their number, or their letters; true is 1."""
    bare = text.strip().casefold()
    number = YES_NO.get(bare, number_in(bare))
    return bare if number is None else number


def _is_index(of: str | Decimal) -> bool:
    return isinstance(of, Decimal) and abs(of) < 10**18 and of == of.to_integral_value()


def _are_values(names: Sequence[str]) -> bool:
    """Whether names are numbers, true or false: by their place they could stand for another value than their own."""
    return any(isinstance(_meaning(name), Decimal) for name in names)


def _with_one_spelling(
    values: Mapping[str, pa.ChunkedArray], column: str
) -> tuple[Mapping[str, pa.ChunkedArray], list[str]]:
    """1.0 as 1 where there is 1 too: a program writes it so when other rows of a file have no label. ' 1' as 1 too."""
    found = set(_distinct(values).to_pylist())
    whole: dict[str, str] = {}
    for text in found:
        bare = text.strip()
        short = re.sub(POINT, r"\1", bare, flags=re.ASCII)
        spelling = next((to for to in (short, bare) if to in found), text)
        if spelling != text and number_in(text) is not None:
            whole[text] = spelling
    if not whole:
        return values, []
    order, spelled = pa.array([*whole], pa.large_string()), pa.array([*whole.values()], pa.large_string())
    made = {
        part: pc.coalesce(pc.take(spelled, pc.index_in(plain(of), value_set=order)), plain(of))
        for part, of in values.items()
    }
    return made, [f"column {column!r}: {_shown(sorted(whole))} are read as {_shown(sorted(whole.values()))}"]


def _type(values: Mapping[str, pa.ChunkedArray]) -> pa.DataType:
    return next(iter(values.values())).type


def _ordered(found: list[str], column: str) -> list[str]:
    """Spelled labels as numbers where all are; raises InvalidInput where these are none of classes."""
    numbers = {text: number for text in found if (number := number_in(text)) is not None}
    if len(numbers) < len(found):
        return found
    if fractions := [text for text, number in numbers.items() if number != number.to_integral_value()]:
        raise InvalidInput(
            f"column {column!r}: labels are fractions ({_shown(fractions)}), and no classes: to predict numbers give "
            "problem_type='regression'; if they are meant as classes, name all with labels=(...)",
            cause="data",
        )
    are_digits = all(re.fullmatch(DIGITS, text, re.ASCII) for text in found)
    if are_digits and (fault := _marks([*map(int, found)], column, named=False)):
        raise InvalidInput(fault, cause="data")
    return sorted(found, key=lambda text: (numbers[text], text))


def _refuse_strays(
    values: Mapping[str, pa.ChunkedArray], column: str, rows: Mapping[str, np.ndarray], pattern: str, what: str
) -> None:
    """Among labels that are nearly all numbers of a kind, a few others are slips of the pen rather than classes."""
    found = {
        part: np.flatnonzero(~pc.fill_null(pc.match_substring_regex(array, pattern), True).to_numpy())
        for part, array in values.items()
    }
    num_strays, num_rows = sum(map(len, found.values())), sum(map(len, values.values()))
    if not 0 < num_strays <= STRAY_SHARE * num_rows:
        return
    shown = [
        f"{values[part][at].as_py()!r} in row {rows[part][at] + 1} of the {part} rows"
        for part, places in found.items()
        for at in places[:MAX_SHOWN]
    ]
    raise InvalidInput(
        f"column {column!r}: {num_rows - num_strays} of {num_rows} labels are {what}, {num_strays} {are(num_strays)} "
        f"not: {'; '.join(shown[:MAX_SHOWN])} {COUNTED}; correct or remove these rows, or name all classes with "
        "labels=(...) if they are meant",
        cause="data",
    )


def _refuse_decimal_commas(values: Mapping[str, pa.ChunkedArray], column: str, found: Sequence[str]) -> None:
    """A csv from where numbers have a comma: as classes each number would be a word of its own."""
    if have_decimal_commas(values.values()):
        raise InvalidInput(
            f"column {column!r}: labels are numbers with a decimal comma ({_shown(found)}), and no classes: to predict "
            "numbers give problem_type='regression'; if they are meant as classes, name all with labels=(...)",
            cause="data",
        )


def _family(kind: pa.DataType) -> str:
    if is_text(kind):
        return "text"
    numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return "number" if numeric or pa.types.is_null(kind) else "other"


def _with_nulls(values: pa.ChunkedArray) -> pa.ChunkedArray:
    if is_text(values.type):
        return plain(values)
    return pc.if_else(pc.is_nan(values), None, values) if pa.types.is_floating(values.type) else values


def _null_fault(values: pa.ChunkedArray, column: str, part: str, rows: np.ndarray) -> str | None:
    empty = pc.is_null(values)
    if is_text(values.type):
        empty = pc.or_(empty, pc.fill_null(pc.equal(pc.utf8_trim_whitespace(values), ""), True))
    found = np.flatnonzero(empty.to_numpy())
    if not len(found):
        return None
    return (
        f"column {column!r}: {len(found)} of {len(values)} labels of the {part} rows {are(len(found))} null or empty, "
        f"{in_rows(rows[found])}; remove these rows or label them"
    )


def _plain(
    parts: Mapping[str, pa.ChunkedArray], column: str, rows: Mapping[str, np.ndarray]
) -> Mapping[str, pa.ChunkedArray]:
    """Texts as they are; numbers as int64, which neither fractions nor infinities can be."""
    if is_text(_type(parts)):
        return parts
    made, wrong, fractions = {}, [], []
    for part, values in parts.items():
        try:
            made[part] = values.cast(pa.int64())
        except pa.ArrowInvalid:
            numbers = values.cast(pa.float64(), safe=False).to_numpy()
            with np.errstate(invalid="ignore"):
                is_fraction = np.isfinite(numbers) & (numbers != np.floor(numbers))
                is_wrong = np.isinf(numbers) | (np.abs(numbers) >= 2.0**63)
            fractions += numbers[is_fraction].tolist()
            wrong += [
                f"{numbers[at]:g} in row {rows[part][at] + 1} of the {part} rows" for at in np.flatnonzero(is_wrong)
            ]
    faults = []
    if fractions:
        faults.append(
            f"column {column!r}: labels are fractions ({', '.join(map(str, fractions[:3]))}), and no classes: to "
            "predict numbers give problem_type='regression'; else name another column, or write each as a whole number "
            "or text"
        )
    if wrong:
        faults.append(
            f"column {column!r}: {counted(len(wrong), 'label')} that no class can be: {listed(wrong, MAX_SHOWN)} "
            f"{COUNTED}; correct or remove these rows, or write the classes as texts"
        )
    if faults:
        raise InvalidInput(faults, cause="data")
    return made


def _distinct(values: Mapping[str, pa.ChunkedArray]) -> pa.Array:
    """Every label once, over all parts."""
    chunks = [chunk for array in values.values() for chunk in array.chunks]
    distinct = pc.unique(pa.chunked_array(chunks, type=next(iter(values.values())).type)).drop_null()
    return distinct.filter(pc.not_equal(pc.utf8_trim_whitespace(distinct), "")) if is_text(distinct.type) else distinct


def _of_texts(found: list[str], column: str, names: tuple[str, ...]) -> tuple[list[str], tuple[str, ...]]:
    if not names:
        return found, tuple(found)
    if strangers := sorted(set(found) - set(names)):
        raise InvalidInput(
            f"column {column!r}: labels {_shown(strangers)} are not among labels={names}; "
            "add them, or leave labels out to take every text as a class",
            cause="data",
        )
    return list(names), names


def _of_numbers(
    found: list[int], column: str, names: tuple[str, ...], *, boolean: bool, kept: Sequence[str]
) -> tuple[list[int], tuple[str, ...]]:
    if fault := _marks(found, column, named=bool(names)):
        raise InvalidInput(fault, cause="data")
    if not names or not found:
        return found, tuple(str(bool(value)) if boolean else str(value) for value in found)
    if not kept and _are_values(names):
        strangers = [of for of in found if Decimal(of) not in map(_meaning, names)] or found
        raise InvalidInput(
            f"column {column!r}: labels {_shown(strangers)} are not among labels={names}, of which some are numbers, "
            "true or false; name every label by its own value, or give names that are no numbers for 0, 1, ...",
            cause="data",
        )
    low, high, last = found[0], found[-1], len(names) - 1
    if low < 0 or high > last:
        based = "; looks 1-based: subtract 1, or leave labels out" if (low, high) == (1, last + 1) else ""
        raise InvalidInput(
            f"column {column!r}: label range {low}-{high}, expected 0-{last} for the {len(names)} names {names}"
            f"{based or '; give one name for each of the labels 0, 1, ..., or leave labels out'}",
            cause="data",
        )
    return list(range(len(names))), names


def _marks(found: list[int], column: str, *, named: bool) -> str | None:
    """The fault of integers that stand for "no label"."""
    if IGNORED in found:
        every = "every label is" if found == [IGNORED] else "some labels are"
        return f"column {column!r}: {every} {IGNORED}, which the loss ignores: nothing to learn from these rows"
    if found == [UNLABELLED]:
        return (
            f"column {column!r}: every label is {UNLABELLED}, the mark of a split whose labels are kept secret; "
            "take another split"
        )
    if UNLABELLED in found and (named or found != [UNLABELLED, 1]):
        return (
            f"column {column!r}: labels {_shown(found)}: {UNLABELLED} marks rows without a label; remove these rows, "
            f"or, where {UNLABELLED} is a class of its own, name all with labels=(...) as the texts they are, or write "
            "them as 0, 1, ..."
        )
    return None


def _refuse_what_is_no_class(found: Sequence[object], num_rows: int, column: str, *, named: bool) -> None:
    num_classes = len(found)
    if num_classes == 1:
        raise InvalidInput(
            f"column {column!r}: every label is {found[0]!r}: one class leaves nothing to learn", cause="data"
        )
    wanted = ROWS_PER_CLASS if num_classes > MANY_CLASSES else 2 if num_classes > FEW_CLASSES else 1
    if num_classes > MAX_CLASSES or (not named and num_classes > 2 and num_rows <= num_classes * wanted):
        raise InvalidInput(
            f"column {column!r}: {num_classes} different labels in {num_rows} rows ({_shown(found)}): that looks like "
            "an id or a number to predict (problem_type='regression'), not like classes; name another column, or put "
            f"the values into at most {MAX_CLASSES} classes of more than {counted(wanted, 'row')} each on average",
            cause="data",
        )


def _indices(values: pa.ChunkedArray, order: Sequence[object]) -> np.ndarray:
    found: np.ndarray = pc.index_in(values, value_set=pa.array(order, type=values.type)).to_numpy()
    return found.astype(np.int64)


def _notes(names: tuple[str, ...], codes: Mapping[str, np.ndarray], column: str) -> list[str]:
    notes = []
    counts = sum(np.bincount(part, minlength=len(names)) for part in codes.values())
    if absent := [name for name, count in zip(names, np.atleast_1d(counts), strict=True) if count == 0]:
        notes.append(f"column {column!r}: no row has the label {_shown(absent)}: the model cannot learn it")
    folded: dict[object, list[str]] = {}
    for name in names:
        number = number_in(name)
        folded.setdefault(name.strip().casefold() if number is None else number, []).append(name)
    if alike := [same for same in folded.values() if len(same) > 1]:
        notes.append(
            f"column {column!r}: {_shown(alike)} differ only in case or spaces, or are the same number, and are "
            "classes of their own"
        )
    elif edged := [name for name in names if name != name.strip()]:
        notes.append(f"column {column!r}: the labels {_shown(edged)} have spaces at their ends, which are kept")
    return notes


def _shown(values: Sequence[object]) -> str:
    return listed(values, MAX_SHOWN, show=reprlib.repr)


def number_in(text: str) -> Decimal | None:
    """The number that a text is, with all its digits; None where it is none."""
    return Decimal(text.strip()) if re.fullmatch(NUMBER, text, re.ASCII) else None


def have_decimal_commas(columns: Iterable[pa.ChunkedArray]) -> bool:
    """Whether every text is a number with a decimal comma or a whole one, and one at least cannot mean thousands."""
    texts = [plain(values).drop_null() for values in columns if is_text(values.type)]
    every = (pc.all(pc.match_substring_regex(of, DECIMAL_COMMA)).as_py() for of in texts)
    return all(every) and any(pc.any(pc.match_substring_regex(of, _NO_THOUSANDS)).as_py() for of in texts)
