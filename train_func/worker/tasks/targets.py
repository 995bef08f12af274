"""The target of each row: one class, several labels, or a number, by ``problem_type``.

Several labels are written as lists, as texts with | between them, or as columns of 0 and 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from train_func.tasks import REGRESSION, SEVERAL, TextClassification
from train_func.text import listed
from train_func.worker.inputs.findings import Findings
from train_func.worker.tasks.columns import (
    decimal_comma_remedy,
    distinct,
    is_blank,
    is_list,
    is_text,
    names_of_classes,
    plain,
)
from train_func.worker.tasks.labels import Labels, encode
from train_func.worker.tasks.train_eval_split import TrainEvalSplit

SEPARATOR = "|"  # a comma or a semicolon often separates the columns of the file
MARKS = {"0": 0.0, "0.0": 0.0, "false": 0.0, "1": 1.0, "1.0": 1.0, "true": 1.0}  # as files spell them
MOST_CLASSES = 8  # shown by name
WIDE = 100.0  # from which size on numbers are far from what a new head predicts: its first outputs lie around 0


@dataclass(frozen=True)
class Targets:
    """The targets of the rows, by part: "training" or "held-out"."""

    names: tuple[str, ...]
    """The classes in the order of their numbers; empty if there are none."""
    values: Mapping[str, pa.Array]
    strata: Mapping[str, np.ndarray]
    """The group of every row; rows are chosen so that each group keeps its share."""


def targets_of(task: TextClassification, tables: Mapping[str, pa.Table], findings: Findings) -> Targets | None:
    """Returns the targets of the rows of each part; adds a fault and returns None if the columns hold none."""
    if isinstance(task.label, tuple):
        return _of_label_lists(encode_columns(tables, task.label, findings))
    parts = {part: table[task.label] for part, table in tables.items()}
    if task.problem_type == REGRESSION:
        numbers = encode_numbers(parts, task.label, findings)
        strata = {part: np.zeros(len(values), dtype=np.int64) for part, values in parts.items()}
        if numbers is None:
            return None
        return Targets((), {part: pa.array(values) for part, values in numbers.items()}, strata)
    data_names = names_of_classes(tables, task.label)
    encoder = encode_lists if task.problem_type == SEVERAL else encode
    labels = encoder(parts, task.label, findings, names=task.labels, data_names=data_names)
    if task.problem_type == SEVERAL or labels is None:
        return _of_label_lists(labels)
    return Targets(labels.names, {part: pa.array(codes) for part, codes in labels.codes.items()}, labels.codes)


def _of_label_lists(labels: Labels | None) -> Targets | None:
    """Returns lists of 0.0 and 1.0; the stratum of a row is its rarest label, so that rare labels keep their share."""
    if labels is None:
        return None
    ranked = np.argsort(np.sum([codes.sum(axis=0) for codes in labels.codes.values()], axis=0), kind="stable")
    values, strata = {}, {}
    for part, codes in labels.codes.items():
        has = codes[:, ranked] > 0
        without = codes.shape[1]  # the stratum of rows without any label
        strata[part] = np.where(has.any(axis=1), ranked[has.argmax(axis=1)], without).astype(np.int64)
        offsets = pa.array(np.arange(len(codes) + 1, dtype=np.int32) * codes.shape[1], pa.int32())
        values[part] = pa.ListArray.from_arrays(offsets, pa.array(codes.astype(np.float32).ravel()))
    return Targets(labels.names, values, strata)


def judge_classes(data: TrainEvalSplit, findings: Findings, *, each_is_learnt: bool) -> None:
    """Reports classes that only one side has; ``each_is_learnt``: whether a class without training rows is a fault."""
    columns = [data.train["label"], data.held_out["label"]]
    if pa.types.is_list(columns[0].type):
        trained, measured = ({*np.flatnonzero(_matrix(column).any(axis=0)).tolist()} for column in columns)
    else:
        trained, measured = ({*np.unique(column.to_numpy()).tolist()} for column in columns)
    untrained, unmeasured, known = (
        listed([data.labels[code] for code in sorted(codes)], show=repr)
        for codes in (measured - trained, trained - measured, trained)
    )
    fault = f"no training row for classes of the held-out rows: {untrained}"
    if untrained and not each_is_learnt:
        findings.note(f"{fault}: the model cannot learn them")
    elif untrained and trained & measured:
        findings.fault(f"{fault}: add such training rows, use more samples, or hold out other rows")
    elif untrained:
        findings.fault(f"{fault}; classes of the training rows are {known}: give the held-out rows these names")
    if unmeasured:
        findings.note(f"no held-out row for classes that are trained: {unmeasured}: they are not measured")


def classes_text(data: TrainEvalSplit) -> str:
    """Returns the classes in a few words, with the majority-class baseline."""
    train, held_out = (side["label"].to_numpy() for side in (data.train, data.held_out))
    right = float(np.mean(held_out == np.bincount(train).argmax()))
    classes = f"{len(data.labels)} classes: {listed(data.labels, MOST_CLASSES)}"
    return f"{classes} (majority-class baseline: {right:.0%} right)"


def combinations_in(column: pa.ChunkedArray) -> np.ndarray:
    """Returns for every row the number of its class or of its combination of labels."""
    if not pa.types.is_list(column.type):
        numbers: np.ndarray = column.to_numpy()
        return numbers
    _, codes = np.unique(_matrix(column), axis=0, return_inverse=True)
    return codes.ravel()


def _matrix(column: pa.ChunkedArray) -> np.ndarray:
    matrix: np.ndarray = column.combine_chunks().flatten().to_numpy().reshape(len(column), -1) > 0
    return matrix


def encode_lists(
    parts: Mapping[str, pa.ChunkedArray],
    column: str,
    findings: Findings,
    *,
    names: Sequence[str] = (),
    data_names: Mapping[str, tuple[str, ...]] | None = None,
) -> Labels | None:
    """Returns the labels of the lists in ``column``; an empty list or text is a row without labels.

    The arguments are those of ``encode``. The codes have shape (rows, labels): 1 if a row has the label, else 0.
    """
    num_faults = len(findings.faults)
    if all(is_text(values.type) for values in parts.values()):
        _judge_bars(parts, column, findings, names)
    lists = {}
    for part, values in parts.items():
        kind = values.type
        if is_text(kind):
            lists[part] = _without_blanks(pc.split_pattern(plain(values), SEPARATOR).combine_chunks())
        elif is_list(kind):
            lists[part] = values.cast(pa.large_list(kind.value_type)).combine_chunks()
        else:
            findings.fault(
                f"column {column!r}: {part} rows hold {kind}; with several labels per row a list is expected in each, "
                f"a text with {SEPARATOR} between the labels, or label=('toxic', 'insult') with columns of 0 and 1"
            )
            continue
        remedy = "give an empty list where a row has no label, or remove these rows"
        findings.fault_rows(column, part, np.flatnonzero(is_blank(lists[part])), "{is} null", remedy, total=len(values))
    if len(findings.faults) > num_faults:
        return None
    each = {part: pa.chunked_array([values.flatten()]) for part, values in lists.items()}
    if not any(len(values) for values in each.values()):
        findings.fault(f"column {column!r}: no row has any label; name another column")
        return None
    rows = {part: values.value_parent_indices().to_numpy() for part, values in lists.items()}
    labels = encode(each, column, findings, names=names, data_names=data_names, rows=rows)
    if labels is None:
        return None
    codes = {part: np.zeros((len(values), len(labels.names)), dtype=np.uint8) for part, values in lists.items()}
    for part, matrix in codes.items():
        matrix[rows[part], labels.codes[part]] = 1
    return Labels(labels.names, codes)


def encode_columns(tables: Mapping[str, pa.Table], columns: tuple[str, ...], findings: Findings) -> Labels | None:
    """Returns a label for each column; a column holds 1 or true in rows with its label. Codes as above."""
    num_faults = len(findings.faults)
    codes = {part: np.zeros((table.num_rows, len(columns)), dtype=np.uint8) for part, table in tables.items()}
    for part, table in tables.items():
        for number, name in enumerate(columns):
            marks = np.array([MARKS.get(str(value).strip().lower(), np.nan) for value in table[name].to_pylist()])
            _judge_values(table[name], name, part, ~np.isnan(marks), findings, "neither 0 nor 1", "correct these rows")
            codes[part][:, number] = marks == 1
    if len(findings.faults) > num_faults:
        return None
    has_row = np.any([matrix.any(axis=0) for matrix in codes.values()], axis=0)
    if not has_row.any():
        findings.fault(f"label={columns}: no row has a 1 in any of these columns; name other columns")
        return None
    if absent := [name for name, has in zip(columns, has_row, strict=True) if not has]:
        findings.note(f"columns {listed(absent, show=repr)}: no row has a 1: the model cannot learn these labels")
    return Labels(columns, codes)


def _judge_bars(parts: Mapping[str, pa.ChunkedArray], column: str, findings: Findings, names: Sequence[str]) -> None:
    """Adds a fault for texts that are no lists of labels: none has a bar, and not all are names of the Run."""
    texts = {text.strip() for values in parts.values() for text in distinct(plain(values)).to_pylist()}
    if not texts <= {*names} and not any(SEPARATOR in text for text in texts):
        findings.fault(
            f"column {column!r}: no text has {SEPARATOR} in it, such as {listed(sorted(texts), show=repr)}; write it "
            f"between labels, as db{SEPARATOR}ui, or give lists, or label=('toxic', 'insult') with columns of 0 and 1; "
            "where each text is one label, name all with labels=(...)"
        )


def _without_blanks(lists: pa.ListArray | pa.LargeListArray) -> pa.ListArray:
    """Returns labels without the spaces around them; an empty text gives none."""
    labels = pc.utf8_trim_whitespace(lists.flatten())
    is_label = pc.not_equal(labels, "")
    rows = lists.value_parent_indices().filter(is_label).to_numpy()
    offsets = pa.array(np.searchsorted(rows, np.arange(len(lists) + 1)))
    return pa.LargeListArray.from_arrays(offsets, labels.filter(is_label), mask=pc.is_null(lists))


def encode_numbers(
    parts: Mapping[str, pa.ChunkedArray], column: str, findings: Findings
) -> dict[str, np.ndarray] | None:
    """Returns the numbers of each part (float32); adds a fault and returns None if rows hold no finite number."""
    num_faults = len(findings.faults)
    numbers = {part: _numbers(values, column, part, findings) for part, values in parts.items()}
    if len(findings.faults) > num_faults:
        return None
    first, *_ = numbers.values()
    if len(np.unique(first)) == 1:
        findings.fault(f"column {column!r}: every number of the training rows is {first[0]:g}: nothing to learn")
        return None
    every = np.concatenate([*numbers.values()])
    low, high = float(every.min()), float(every.max())
    if max(-low, high) >= WIDE:
        findings.note(
            f"column {column!r}: numbers from {low:g} to {high:g}; the loss is the squared distance on that scale, "
            "which a usual learning rate hardly covers: divide them first, so that most lie between -1 and 1, for "
            f"example frame.assign(**{{{column!r}: frame[{column!r}] / {max(-low, high):g}}})"
        )
    return numbers


def _numbers(values: pa.ChunkedArray, column: str, part: str, findings: Findings) -> np.ndarray:
    """Returns the numbers of a part, with NaN, and a fault, for values that are no numbers."""
    kind = values.type
    if is_text(kind):
        numbers = np.array([_number_in(text) for text in values.to_pylist()])
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        numbers = values.cast(pa.float64(), safe=False).to_numpy()
    else:
        findings.fault(f"column {column!r}: {part} rows hold {kind}, and problem_type='regression' predicts numbers")
        return np.full(len(values), np.nan)
    with np.errstate(over="ignore"):
        numbers = numbers.astype(np.float32)
    remedy = "correct or remove these rows; classes are predicted with the default problem_type"
    if is_text(kind):
        wrong = [text or "" for text in values.filter(pa.array(~np.isfinite(numbers))).to_pylist()]
        with_comma = [comma_remedy for text in wrong if (comma_remedy := decimal_comma_remedy(text))]
        if with_comma:
            others = "" if len(with_comma) == len(wrong) else "; correct or remove the other rows"
            remedy = f"{with_comma[0]}{others}"
    _judge_values(values, column, part, np.isfinite(numbers), findings, "no finite number", remedy)
    return numbers


def _number_in(text: str | None) -> float:
    try:
        return float(text or "nan")
    except ValueError:
        return np.nan


def _judge_values(
    values: pa.ChunkedArray, column: str, part: str, is_right: np.ndarray, findings: Findings, what: str, remedy: str
) -> None:
    """Adds a fault for values that are not right; ``what`` names them."""
    rows = np.flatnonzero(~is_right)
    if len(rows):
        problem = f"{{is}} {what}, such as {values[rows[0]].as_py()!r}"
        findings.fault_rows(column, part, rows, problem, remedy, "value")
