"""Divides the checked rows of a run into training and held-out ones, as Arrow tables."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from train_func.errors import InvalidInput
from train_func.storage import Store
from train_func.tasks import TextClassification
from train_func.worker.inputs.locate import LocalFiles
from train_func.worker.inputs.reader import class_names
from train_func.worker.tasks.columns import missing_column
from train_func.worker.tasks.labels import Labels, encode
from train_func.worker.tasks.sources import HELD_OUT, TRAINING, find_sources
from train_func.worker.tasks.stratified_sample import stratified_sample
from train_func.worker.tasks.texts import contradictions, overlap, plain, text_faults

_SAMPLE, _HOLD_OUT = 1, 2  # streams of the run's seed


@dataclass(frozen=True)
class TrainEvalSplit:
    """Tables with the columns ``text``, ``label`` (index into ``labels``) and ``row_id``; ``num_rows`` as found."""

    train: pa.Table
    held_out: pa.Table
    labels: tuple[str, ...]
    notes: list[str]
    fingerprints: Mapping[str, str]
    """Of what the rows were read from, by the field of the task that names it."""
    num_rows: int
    local: Mapping[str, LocalFiles]
    """Files of this machine that the rows were read from, by the field of the task that names them."""
    commit: str | None = None
    """Of the Hub's data set."""


def split_rows(task: TextClassification, seed: int, store: Store | None, cache: Path) -> TrainEvalSplit:
    """What ``split.prepare`` hands out, without the seconds that importing `datasets` takes.

    Raises:
        InvalidInput: with every fault of the data at once.
        StorageFailed: the store is away or denies.
    """
    parts = find_sources(task, store, cache)
    texts, labels, notes = _checked(task, parts.tables)
    train_rows, held_rows = _chosen(task, seed, labels)
    held_part = HELD_OUT if HELD_OUT in labels.codes else TRAINING
    train = _side(texts[TRAINING], labels.codes[TRAINING], train_rows, first_id=0)
    first_id = len(texts[TRAINING]) if held_part == HELD_OUT else 0
    held_out = _side(texts[held_part], labels.codes[held_part], held_rows, first_id=first_id)
    faults, said = overlap(train["text"], held_out["text"], held_rows)
    faults += _unlearnable(train, held_out, labels.names)
    if faults:
        raise InvalidInput(faults, cause="data")
    said += _unmeasured(train, held_out, labels.names)
    said += contradictions(train["text"], train["label"].to_numpy(), labels.names)
    num_rows = sum(table.num_rows for table in parts.tables.values())
    if task.samples is not None and task.samples > num_rows:
        said.append(f"samples={task.samples}: there are {num_rows} rows, and all are used")
    said = [*parts.notes, *notes, *said]
    return TrainEvalSplit(train, held_out, labels.names, said, parts.fingerprints, num_rows, parts.local, parts.commit)


def _checked(
    task: TextClassification, tables: Mapping[str, pa.Table]
) -> tuple[dict[str, pa.ChunkedArray], Labels, list[str]]:
    """Texts, labels and notes of all parts; raises InvalidInput with all that is wrong in any."""
    faults: list[str] = []
    notes: list[str] = []
    labelled = {}
    for part, table in tables.items():
        where = f"dataset={task.dataset!r}" if part == TRAINING else f"held_out={task.held_out!r}"
        columns = {"text": task.text, "label": task.label}
        missing = [fault for field, name in columns.items() if (fault := missing_column(table, where, field, name))]
        if not table.num_rows:
            missing.append(f"{where}: 0 rows; the {part} rows are expected there")
        elif task.text in table.column_names:
            wrong, said = text_faults(table, task.text, part)
            faults += wrong
            notes += said
        faults += missing
        if task.label in table.column_names and table.num_rows:
            labelled[part] = table[task.label]
    try:
        labels = encode(labelled, task.label, given=task.labels, kept=_kept(tables, task.label)) if labelled else None
    except InvalidInput as found:
        labels = None
        faults += found.faults
    if faults or labels is None:
        raise InvalidInput(faults, cause="data")
    return {part: plain(table[task.text]) for part, table in tables.items()}, labels, [*notes, *labels.notes]


def _kept(tables: Mapping[str, pa.Table], column: str) -> tuple[str, ...]:
    return next((names for table in tables.values() if (names := class_names(table, column))), ())


def _chosen(task: TextClassification, seed: int, labels: Labels) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the training rows in their part, and of the held-out rows in theirs."""
    codes = labels.codes[TRAINING]
    if HELD_OUT in labels.codes:
        return _sampled(task.samples, seed, codes, labels.codes[HELD_OUT])
    assert not isinstance(task.held_out, str)
    used = np.arange(len(codes))
    if task.samples is not None:
        used = stratified_sample(codes, task.samples, seed=seed, stream=_SAMPLE)
    num_held = round(len(used) * task.held_out)
    num_classes = len(np.unique(codes))
    if len(used) < 2 * num_classes:
        rows = f"samples={task.samples}" if len(used) < len(codes) else f"dataset={task.dataset!r}: {len(codes)} rows"
        raise InvalidInput(
            f"{rows}: for {num_classes} classes at least {2 * num_classes} rows are expected, one of each class to "
            "train and one held out",
            cause="data",
        )
    if not num_classes <= num_held <= len(used) - num_classes:
        raise InvalidInput(
            f"held_out={task.held_out}: {num_held} of {len(used)} rows held out, {len(used) - num_held} to train on; "
            f"one row of each of the {num_classes} classes is expected on both sides: "
            f"{_remedy(task.held_out, num_classes, len(used), len(codes))}",
            cause="data",
        )
    held = stratified_sample(codes[used], num_held, seed=seed, stream=_HOLD_OUT, leave=1)
    return np.delete(used, held), used[held]


def _remedy(share: float, num_classes: int, num_used: int, num_rows: int) -> str:
    """The shares that hold out and leave enough rows; where hardly one does, the rows that ``share`` needs."""
    low = math.ceil(num_classes / num_used * 1000) / 1000
    high = math.floor((1 - num_classes / num_used) * 1000) / 1000
    if low < high:
        return f"give a share from {low} to {high}"
    wanted = max(2 * num_classes, int((num_classes - 1) / min(share, 1 - share)))
    while not num_classes <= round(wanted * share) <= wanted - num_classes:
        wanted += 1
    if wanted <= num_rows:
        return f"give samples={wanted} or more"
    return f"with this share {wanted} rows or more are expected, and there are {num_rows}"


def _sampled(samples: int | None, seed: int, train: np.ndarray, held_out: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All rows of two parts, or ``samples`` of both together."""
    total = len(train) + len(held_out)
    if samples is None or samples >= total:
        return np.arange(len(train)), np.arange(len(held_out))
    num_held = round(samples * len(held_out) / total)
    num_classes = len(np.unique(train))
    if min(num_held, samples - num_held) < num_classes:
        wanted = math.ceil(num_classes * total / min(len(train), len(held_out)))
        raise InvalidInput(
            f"samples={samples}: divided as the two splits are, {len(train)} to {len(held_out)}, that is "
            f"{samples - num_held} rows to train on and {num_held} held out; one of each of the {num_classes} "
            f"classes is expected on both sides: give samples={wanted} or more",
            cause="data",
        )
    return (
        stratified_sample(train, samples - num_held, seed=seed, stream=_SAMPLE),
        stratified_sample(held_out, num_held, seed=seed, stream=_SAMPLE),
    )


def _side(texts: pa.ChunkedArray, codes: np.ndarray, rows: np.ndarray, *, first_id: int) -> pa.Table:
    return pa.table({"text": texts.take(pa.array(rows)), "label": codes[rows], "row_id": rows + first_id})


def _unlearnable(train: pa.Table, held_out: pa.Table, names: tuple[str, ...]) -> list[str]:
    if not (missing := _only_in(held_out, train, names)):
        return []
    return [f"no training row for classes of the held-out rows: {missing}: use more samples, or hold out other rows"]


def _unmeasured(train: pa.Table, held_out: pa.Table, names: tuple[str, ...]) -> list[str]:
    missing = _only_in(train, held_out, names)
    return [f"no held-out row for classes that are trained: {missing}: they are not measured"] if missing else []


def _only_in(rows: pa.Table, others: pa.Table, names: tuple[str, ...]) -> str:
    """The classes that ``others`` lack, for a message."""
    missing = np.setdiff1d(rows["label"].to_numpy(), others["label"].to_numpy())
    more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
    return ", ".join(repr(names[code]) for code in missing[:5]) + more
