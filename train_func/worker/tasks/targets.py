"""What is to be predicted of each row: one class, several labels, or a number, as ``problem_type`` says."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from train_func.counted import listed
from train_func.tasks import REGRESSION, SEVERAL, TextClassification
from train_func.worker.inputs.delimited import is_spelled
from train_func.worker.inputs.reader import class_names
from train_func.worker.tasks import labels
from train_func.worker.tasks.label_lists import SEPARATOR, encode_columns, encode_lists, likely_several
from train_func.worker.tasks.numbers import encode_numbers


@dataclass(frozen=True)
class Targets:
    """By part, "training" or "held-out": a value for every row, and the stratum by which rows are chosen."""

    names: tuple[str, ...]
    """Of the classes, in the order of their numbers; empty where there are none."""
    values: Mapping[str, pa.Array]
    strata: Mapping[str, np.ndarray]
    notes: Sequence[str]


def targets_of(task: TextClassification, tables: Mapping[str, pa.Table]) -> Targets:
    """Those of the rows of each part; raises InvalidInput with every reason why the columns hold none."""
    if isinstance(task.label, tuple):
        return _of_label_lists(encode_columns(tables, task.label))
    parts = {part: table[task.label] for part, table in tables.items()}
    if task.problem_type == REGRESSION:
        numbers, notes = encode_numbers(parts, task.label)
        strata = {part: np.zeros(len(values), dtype=np.int64) for part, values in numbers.items()}
        return Targets((), {part: pa.array(values) for part, values in numbers.items()}, strata, notes)
    kept = next((names for table in tables.values() if (names := class_names(table, task.label))), ())
    spelled = any(is_spelled(table, task.label) for table in tables.values())
    if task.problem_type == SEVERAL:
        return _of_label_lists(encode_lists(parts, task.label, given=task.labels, kept=kept, spelled=spelled))
    found = labels.encode(parts, task.label, given=task.labels, kept=kept, spelled=spelled)
    values = {part: pa.array(codes) for part, codes in found.codes.items()}
    notes = [*found.notes, *_several_note(found.names, task)]
    return Targets(found.names, values, found.codes, notes)


def _several_note(names: tuple[str, ...], task: TextClassification) -> list[str]:
    """A note on classes that are rather several labels of one row."""
    several = [name for name in sorted(likely_several({*names}, (), SEPARATOR)) if SEPARATOR in name]
    if not several or task.labels:
        return []
    said = f"column {task.label!r}: {listed(several, show=repr)} are classes of their own here"
    return [f"{said}; where each is several labels of one row give problem_type={SEVERAL!r}"]


def _of_label_lists(found: labels.Labels) -> Targets:
    counts = np.sum([codes.sum(axis=0) for codes in found.codes.values()], axis=0)
    strata = {part: _rarest(codes, counts) for part, codes in found.codes.items()}
    values = {part: _lists(codes) for part, codes in found.codes.items()}
    return Targets(found.names, values, strata, found.notes)


def _rarest(codes: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The rarest label of every row, one more than the last for a row without any: rare ones keep their share best."""
    ranked = np.argsort(counts, kind="stable")
    has = codes[:, ranked] > 0
    rarest: np.ndarray = np.where(has.any(axis=1), ranked[has.argmax(axis=1)], codes.shape[1])
    return rarest.astype(np.int64)


def _lists(codes: np.ndarray) -> pa.ListArray:
    num_rows, num_labels = codes.shape
    offsets = pa.array(np.arange(num_rows + 1, dtype=np.int32) * num_labels, pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.array(codes.astype(np.float32).ravel()))


def classes_in(column: pa.ChunkedArray) -> set[int]:
    """The codes of the classes that stand in a column of targets; none for numbers."""
    if pa.types.is_list(column.type):
        return set(np.flatnonzero(_matrix(column).any(axis=0)).tolist())
    return set() if pa.types.is_floating(column.type) else set(np.unique(column.to_numpy()).tolist())


def missing_classes(
    train: pa.ChunkedArray, held_out: pa.ChunkedArray, names: tuple[str, ...], *, each_is_learnt: bool
) -> tuple[list[str], list[str]]:
    """Faults and notes of classes that only one side has; ``each_is_learnt``: whether a fault where none is trained."""
    trained, measured = classes_in(train), classes_in(held_out)
    faults, notes = [], []
    if missing := listed([names[code] for code in sorted(measured - trained)], show=repr):
        said = f"no training row for classes of the held-out rows: {missing}"
        if each_is_learnt and not trained & measured:
            known = listed([names[code] for code in sorted(trained)], show=repr)
            faults.append(f"{said}; classes of the training rows are {known}: give the held-out rows these names")
        elif each_is_learnt:
            faults.append(f"{said}: add such training rows, use more samples, or hold out other rows")
        else:
            notes.append(f"{said}: the model cannot learn them")
    if missing := listed([names[code] for code in sorted(trained - measured)], show=repr):
        notes.append(f"no held-out row for classes that are trained: {missing}: they are not measured")
    return faults, notes


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
