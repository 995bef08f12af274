"""Turns a column into numbers to predict, or says in which rows it holds none."""

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from train_func.counted import COUNTED, MAX_SHOWN, counted
from train_func.errors import InvalidInput
from train_func.worker.tasks.columns import is_text, plain

# With a decimal comma; three digits behind it may also be thousands, unless a zero is before it.
DECIMAL_COMMA = r"^\s*[+-]?\d+(,\d+)?\s*$"
_NO_THOUSANDS = r"^\s*[+-]?(0,\d+|\d+,(\d{1,2}|\d{4,})|\d{4,},\d+)\s*$"
NUMBER = r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"
WIDE = 100.0  # from which size on numbers are far from what a new head predicts: its first outputs lie around 0


def encode_numbers(parts: Mapping[str, pa.ChunkedArray], column: str) -> tuple[dict[str, np.ndarray], list[str]]:
    """The numbers of each part (float32), as "training" and "held-out", and notes.

    Texts are numbers where each is one; those with a decimal comma where that is the only way to read all of them.

    Raises:
        InvalidInput: with the first rows of each part that hold no finite number.
    """
    has_commas = have_decimal_commas(parts.values())
    if has_commas:
        parts = {part: _with_points(values) for part, values in parts.items()}
    faults = [fault for part, values in parts.items() if (fault := _fault(values, column, part))]
    if faults:
        raise InvalidInput(faults, cause="data")
    numbers = {part: _numbers(values).astype(np.float32) for part, values in parts.items()}
    first, *_ = numbers.values()
    if len(np.unique(first)) == 1:
        raise InvalidInput(
            f"column {column!r}: every number of the training rows is {first[0]:g}: nothing to learn", cause="data"
        )
    low, high = (float(of(np.concatenate([*numbers.values()]))) for of in (np.min, np.max))
    notes = [f"column {column!r}: its commas are read as decimal points, as 3,5 for 3.5"] if has_commas else []
    if max(-low, high) < WIDE:
        return numbers, notes
    note = (
        f"column {column!r}: numbers from {low:g} to {high:g}; the loss is the squared distance on that scale, which a "
        "usual learning rate hardly covers: divide them first, so that most lie between -1 and 1, for example "
        f"frame.assign(**{{{column!r}: frame[{column!r}] / {max(-low, high):g}}})"
    )
    return numbers, [*notes, note]


def number_in(text: str) -> Decimal | None:
    """The number that a text is, with all its digits; None where it is none."""
    return Decimal(text.strip()) if re.fullmatch(NUMBER, text, re.ASCII) else None


def have_decimal_commas(columns: Iterable[pa.ChunkedArray]) -> bool:
    """Whether every text is a number with a decimal comma or a whole one, and one at least cannot mean thousands."""
    texts = [plain(values).drop_null() for values in columns if is_text(values.type)]
    every = (pc.all(pc.match_substring_regex(of, DECIMAL_COMMA)).as_py() for of in texts)
    return all(every) and any(pc.any(pc.match_substring_regex(of, _NO_THOUSANDS)).as_py() for of in texts)


def _with_points(values: pa.ChunkedArray) -> pa.ChunkedArray:
    if not is_text(values.type):
        return values
    return pc.replace_substring(pc.utf8_trim_whitespace(plain(values)), ",", ".").cast(pa.float64())


def _fault(values: pa.ChunkedArray, column: str, part: str) -> str | None:
    kind = values.type
    if is_text(kind):
        texts = plain(values)
        number = pc.fill_null(pc.match_substring_regex(texts, NUMBER), False)
        if len(wrong := np.flatnonzero(~number.to_numpy())):
            expected = (
                "a number is expected in each, without unit, with a decimal point or, where no comma can mean "
                "thousands, a decimal comma: correct or remove these rows"
            )
            words = texts.drop_null()
            if len(words) and not pc.any(pc.match_substring_regex(words, r"\d")).as_py():
                expected = "these look like classes, which the default problem_type predicts: leave it out"
            return _named(values, wrong, column, part, expected)
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        return f"column {column!r}: {part} rows hold {kind}, and problem_type='regression' predicts numbers"
    with np.errstate(over="ignore"):
        wrong = np.flatnonzero(~np.isfinite(_numbers(values).astype(np.float32)))
    expected = "a finite number is expected in each: correct or remove these rows"
    return _named(values, wrong, column, part, expected) if len(wrong) else None


def _named(values: pa.ChunkedArray, wrong: np.ndarray, column: str, part: str, expected: str) -> str:
    shown = "; ".join(f"{values[row].as_py()!r} in row {row + 1}" for row in wrong[:MAX_SHOWN].tolist())
    return (
        f"column {column!r}: {counted(len(wrong), 'value')} of the {part} rows cannot be predicted: {shown} "
        f"{COUNTED}; {expected}"
    )


def _numbers(values: pa.ChunkedArray) -> np.ndarray:
    """As float64, a null as NaN."""
    if is_text(values.type):
        return np.array([float(text) for text in values.to_pylist()], dtype=np.float64)
    found: np.ndarray = values.cast(pa.float64(), safe=False).to_numpy().astype(np.float64)
    return found
