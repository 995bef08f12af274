"""What is to be predicted of each row: one class, several labels, or a number, as ``problem_type`` says.

Several labels stand in lists, in texts with | between them, or in columns of 0 and 1.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from train_func.errors import InvalidInput
from train_func.tasks import REGRESSION, SEVERAL, TextClassification
from train_func.text import COUNTED, MAX_SHOWN, are, counted, listed
from train_func.worker.inputs.findings import Findings
from train_func.worker.tasks.columns import are_spelled, column_fault, is_text, names_of_classes, plain
from train_func.worker.tasks.labels import NUMBER, Labels, encode, have_decimal_commas, number_in
from train_func.worker.tasks.train_eval_split import TrainEvalSplit

SEPARATOR = "|"  # a comma or a semicolon often separates the columns of the file
_SEVERAL = re.compile(r"[,;\n\t]|^[\[{<].*[\]}>]$")  # a text that is several labels, where there is no bar
MARKS = {"0": 0.0, "0.0": 0.0, "false": 0.0, "1": 1.0, "1.0": 1.0, "true": 1.0}  # as files spell them
WIDE = 100.0  # from which size on numbers are far from what a new head predicts: its first outputs lie around 0


@dataclass(frozen=True)
class Targets:
    """By part, "training" or "held-out": a value for every row, and the stratum by which rows are chosen."""

    names: tuple[str, ...]
    """Of the classes, in the order of their numbers; empty where there are none."""
    values: Mapping[str, pa.Array]
    strata: Mapping[str, np.ndarray]


def targets_of(task: TextClassification, tables: Mapping[str, pa.Table], findings: Findings) -> Targets:
    """Those of the rows of each part; raises InvalidInput with every reason why the columns hold none."""
    if isinstance(task.label, tuple):
        return _of_label_lists(encode_columns(tables, task.label), findings)
    parts = {part: table[task.label] for part, table in tables.items()}
    if task.problem_type == REGRESSION:
        numbers = encode_numbers(parts, task.label, findings)
        strata = {part: np.zeros(len(values), dtype=np.int64) for part, values in numbers.items()}
        return Targets((), {part: pa.array(values) for part, values in numbers.items()}, strata)
    kept, spelled = names_of_classes(tables, task.label), are_spelled(tables, task.label)
    if task.problem_type == SEVERAL:
        lists = encode_lists(parts, task.label, given=task.labels, kept=kept, spelled=spelled)
        return _of_label_lists(lists, findings)
    classes = encode(parts, task.label, given=task.labels, kept=kept, spelled=spelled)
    findings.note(*classes.notes)
    several = [name for name in classes.names if SEPARATOR in name]
    if several and not task.labels:
        findings.note(
            f"column {task.label!r}: {listed(several, show=repr)} are classes of their own here; where each is several "
            f"labels of one row give problem_type={SEVERAL!r}"
        )
    return Targets(classes.names, {part: pa.array(codes) for part, codes in classes.codes.items()}, classes.codes)


def _of_label_lists(found: Labels, findings: Findings) -> Targets:
    findings.note(*found.notes)
    counts = np.sum([codes.sum(axis=0) for codes in found.codes.values()], axis=0)
    strata = {part: _rarest(codes, counts) for part, codes in found.codes.items()}
    values = {}
    for part, codes in found.codes.items():
        offsets = pa.array(np.arange(len(codes) + 1, dtype=np.int32) * codes.shape[1], pa.int32())
        values[part] = pa.ListArray.from_arrays(offsets, pa.array(codes.astype(np.float32).ravel()))
    return Targets(found.names, values, strata)


def _rarest(codes: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The rarest label of every row, one more than the last for a row without any: rare ones keep their share best."""
    ranked = np.argsort(counts, kind="stable")
    has = codes[:, ranked] > 0
    rarest: np.ndarray = np.where(has.any(axis=1), ranked[has.argmax(axis=1)], codes.shape[1])
    return rarest.astype(np.int64)


def classes_in(column: pa.ChunkedArray) -> set[int]:
    """The codes of the classes that stand in a column of targets; none for numbers."""
    if pa.types.is_list(column.type):
        return set(np.flatnonzero(_matrix(column).any(axis=0)).tolist())
    return set() if pa.types.is_floating(column.type) else set(np.unique(column.to_numpy()).tolist())


def judge_classes(data: TrainEvalSplit, findings: Findings, *, each_is_learnt: bool) -> None:
    """Finds classes that only one side has; ``each_is_learnt``: whether it is a fault where none is trained."""
    trained, measured = classes_in(data.train["label"]), classes_in(data.held_out["label"])
    if missing := listed([data.labels[code] for code in sorted(measured - trained)], show=repr):
        said = f"no training row for classes of the held-out rows: {missing}"
        if each_is_learnt and not trained & measured:
            known = listed([data.labels[code] for code in sorted(trained)], show=repr)
            findings.fault(f"{said}; classes of the training rows are {known}: give the held-out rows these names")
        elif each_is_learnt:
            findings.fault(f"{said}: add such training rows, use more samples, or hold out other rows")
        else:
            findings.note(f"{said}: the model cannot learn them")
    if missing := listed([data.labels[code] for code in sorted(trained - measured)], show=repr):
        findings.note(f"no held-out row for classes that are trained: {missing}: they are not measured")


def majority_baseline(train: np.ndarray, held_out: np.ndarray) -> float:
    """The share of the held-out rows that have the most frequent class of those to train on."""
    return float(np.mean(held_out == np.bincount(train).argmax()))


def combinations_in(column: pa.ChunkedArray, names: tuple[str, ...]) -> tuple[np.ndarray, tuple[str, ...]]:
    """For every row the number of its class, or of its combination of labels, and what each of them is called."""
    if not pa.types.is_list(column.type):
        return column.to_numpy(), names
    found, codes = np.unique(_matrix(column), axis=0, return_inverse=True)
    called = (" + ".join(name for name, has in zip(names, row, strict=True) if has) or "no label" for row in found)
    return codes.ravel(), tuple(called)


def _matrix(column: pa.ChunkedArray) -> np.ndarray:
    values = np.concatenate([np.asarray(chunk.flatten()) for chunk in column.chunks])
    return values.reshape(len(column), -1) > 0


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
    _refuse_unseparated(parts, column, given, spelled=spelled)
    findings = Findings()
    for part, values in lists.items():
        remedy = "give an empty list where a row has no label, or remove these rows"
        nulls = np.flatnonzero(pc.is_null(values).to_numpy(zero_copy_only=False))
        findings.fault_rows(column, part, nulls, "{is} null in place of labels", remedy, total=len(values))
    findings.refuse()
    rows = {part: values.value_parent_indices().to_numpy() for part, values in lists.items()}
    each = {part: pa.chunked_array([values.flatten()]) for part, values in lists.items()}
    if not any(len(values) for values in each.values()):
        raise column_fault(column, "no row has any label; name another column")
    found = encode(each, column, given=given, kept=kept, rows=rows, spelled=spelled)
    codes = {}
    for part, values in lists.items():
        codes[part] = np.zeros((len(values), len(found.names)), dtype=np.uint8)
        codes[part][rows[part], found.codes[part]] = 1
    return Labels(found.names, codes, found.notes)


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
    """The labels of each row; those in a text without the spaces around them, and of an empty text none."""
    kind = values.type
    if is_text(kind):
        texts = plain(values).to_pylist()
        labels = [None if text is None else [*filter(None, map(str.strip, text.split(SEPARATOR)))] for text in texts]
        return pa.array(labels, pa.large_list(pa.large_string()))
    if pa.types.is_fixed_size_list(kind):
        values = values.cast(pa.list_(kind.value_type))
    elif not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        raise _no_lists(kind, column, part)
    return pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)


def _no_lists(content: object, column: str, part: str) -> InvalidInput:
    return column_fault(
        column,
        f"{part} rows hold {content}; with several labels per row a list is expected in each, a text with {SEPARATOR} "
        "between the labels, or label=('toxic', 'insult') with columns of 0 and 1",
    )


def _refuse_unseparated(
    parts: Mapping[str, pa.ChunkedArray], column: str, given: Sequence[str], *, spelled: bool
) -> None:
    """Raises InvalidInput if no text has a bar, and texts look like numbers or like several labels in one."""
    if not all(is_text(values.type) for values in parts.values()):
        return
    texts = {text.strip() for values in parts.values() for text in pc.unique(plain(values)).drop_null().to_pylist()}
    texts.discard("")
    if not texts or any(SEPARATOR in text for text in texts):
        return
    if spelled and not given and all(number_in(text) is not None for text in texts):
        raise _no_lists("numbers", column, next(iter(parts)))
    if several := sorted(filter(_SEVERAL.search, texts - set(given))):
        raise column_fault(
            column,
            f"no text has {SEPARATOR} in it, and {len(several)} of {len(texts)} different ones look like several "
            f"labels in one: {listed(several, show=repr)}; write {SEPARATOR} between labels, as db{SEPARATOR}ui, or "
            "give lists; where such a text is one label, name all with labels=(...)",
        )


def _mark_fault(values: pa.ChunkedArray, column: str, part: str) -> str | None:
    kind = values.type
    if not (is_text(kind) or pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return f"column {column!r}: {part} rows hold {kind}; 0 or 1 is expected in each where label= names columns"
    wrong = np.flatnonzero(~np.isin(_marks(values), (0, 1)))
    return _value_fault(values, wrong, column, part, f"{are(len(wrong))} neither 0 nor 1") if len(wrong) else None


def _value_fault(values: pa.ChunkedArray, wrong: np.ndarray, column: str, part: str, problem: str) -> str:
    shown = "; ".join(f"{values[row].as_py()!r} in row {row + 1}" for row in wrong[:MAX_SHOWN].tolist())
    return f"column {column!r}: {counted(len(wrong), 'value')} of the {part} rows {problem}: {shown} {COUNTED}"


def _marks(values: pa.ChunkedArray) -> np.ndarray:
    """As float64, what is no number as NaN."""
    if is_text(values.type):
        return np.array([MARKS.get((text or "").strip().lower(), np.nan) for text in values.to_pylist()])
    whole = values.cast(pa.int8()) if pa.types.is_boolean(values.type) else values
    found: np.ndarray = whole.cast(pa.float64(), safe=False).to_numpy()
    return found


def encode_numbers(parts: Mapping[str, pa.ChunkedArray], column: str, findings: Findings) -> dict[str, np.ndarray]:
    """The numbers of each part (float32), as "training" and "held-out".

    Texts are numbers where each is one; those with a decimal comma where that is the only way to read all of them.

    Raises:
        InvalidInput: with the first rows of each part that hold no finite number.
    """
    has_commas = have_decimal_commas(parts.values())
    if has_commas:
        parts = {
            part: pc.replace_substring(pc.utf8_trim_whitespace(plain(values)), ",", ".").cast(pa.float64())
            if is_text(values.type)
            else values
            for part, values in parts.items()
        }
    faults = [fault for part, values in parts.items() if (fault := _number_fault(values, column, part))]
    if faults:
        raise InvalidInput(faults, cause="data")
    numbers = {part: _numbers(values).astype(np.float32) for part, values in parts.items()}
    first, *_ = numbers.values()
    if len(np.unique(first)) == 1:
        raise column_fault(column, f"every number of the training rows is {first[0]:g}: nothing to learn")
    low, high = (float(of(np.concatenate([*numbers.values()]))) for of in (np.min, np.max))
    if has_commas:
        findings.note(f"column {column!r}: its commas are read as decimal points, as 3,5 for 3.5")
    if max(-low, high) >= WIDE:
        findings.note(
            f"column {column!r}: numbers from {low:g} to {high:g}; the loss is the squared distance on that scale, "
            "which a usual learning rate hardly covers: divide them first, so that most lie between -1 and 1, for "
            f"example frame.assign(**{{{column!r}: frame[{column!r}] / {max(-low, high):g}}})"
        )
    return numbers


def _number_fault(values: pa.ChunkedArray, column: str, part: str) -> str | None:
    kind, problem = values.type, "cannot be predicted"
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
            return f"{_value_fault(values, wrong, column, part, problem)}; {expected}"
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        return f"column {column!r}: {part} rows hold {kind}, and problem_type='regression' predicts numbers"
    with np.errstate(over="ignore"):
        wrong = np.flatnonzero(~np.isfinite(_numbers(values).astype(np.float32)))
    expected = "a finite number is expected in each: correct or remove these rows"
    return f"{_value_fault(values, wrong, column, part, problem)}; {expected}" if len(wrong) else None


def _numbers(values: pa.ChunkedArray) -> np.ndarray:
    """As float64, a null as NaN."""
    if is_text(values.type):
        return np.array([float(text) for text in values.to_pylist()], dtype=np.float64)
    found: np.ndarray = values.cast(pa.float64(), safe=False).to_numpy().astype(np.float64)
    return found
