"""Reads, checks and divides the rows of text classification: texts or pairs of them, and what is to be predicted."""

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from train_func.errors import InvalidInput
from train_func.storage import Store
from train_func.tasks import REGRESSION, SEVERAL, SINGLE, TextClassification
from train_func.worker.tasks.columns import missing_columns, plain
from train_func.worker.tasks.sources import find_sources, where
from train_func.worker.tasks.targets import Targets, combinations_in, missing_classes, targets_of
from train_func.worker.tasks.texts import contradictions, joined, overlap, text_faults
from train_func.worker.tasks.train_eval_split import Divided, TrainEvalSplit, divide


def split_rows(task: TextClassification, seed: int, store: Store | None, cache: Path) -> TrainEvalSplit:
    """Reads, checks and divides the rows of a task, without the seconds that importing `datasets` takes.

    The tables have the columns ``text``, ``text_pair`` where there are pairs, ``row_id`` and ``label``: the index into
    ``labels``, a list with 1.0 for each of the row's labels and 0.0 for each other one, or the number.

    Raises:
        InvalidInput: with every fault of the data at once.
        StorageFailed: the store is away or denies.
    """
    has_classes = task.problem_type != REGRESSION and not isinstance(task.label, tuple)
    classes = label_columns(task) if has_classes else ()
    sources = find_sources(task, (*_text_columns(task).values(), *label_columns(task)), store, cache, classes=classes)
    targets, notes = _checked(task, sources.tables)
    tables = {part: _columns(task, table, targets.values[part]) for part, table in sources.tables.items()}
    each_class = task.problem_type == SINGLE  # a rare one of several labels may be on one side only
    divided = divide(task, seed, tables, targets.strata, num_rows=sources.num_rows, each_stratum=each_class)
    said = _compared(task, divided, targets.names)
    notes = [*sources.notes, *notes, *targets.notes, *said, *divided.notes]
    return TrainEvalSplit(divided.train, divided.held_out, targets.names, notes, sources)


def label_columns(task: TextClassification) -> tuple[str, ...]:
    """The names of the columns with what is to be predicted."""
    return task.label if isinstance(task.label, tuple) else (task.label,)


def _text_columns(task: TextClassification) -> dict[str, str]:
    """Names of the columns with texts, by the field that names them."""
    return {"text": task.text} | ({"text_pair": task.text_pair} if task.text_pair is not None else {})


def _checked(task: TextClassification, tables: Mapping[str, pa.Table]) -> tuple[Targets, list[str]]:
    """What is to be predicted, and notes on the texts; raises InvalidInput with all that is wrong in any part."""
    faults: list[str] = []
    notes: list[str] = []
    labelled = {}
    wanted = [*_text_columns(task).items(), *(("label", name) for name in label_columns(task))]
    for part, table in tables.items():
        here = where(task, part)
        missing = missing_columns(table, here, wanted)
        if not table.num_rows:
            missing.append(f"{here}: 0 rows; the {part} rows are expected there")
        for name in _text_columns(task).values():
            if table.num_rows and name in table.column_names:
                wrong, said = text_faults(table, name, part)
                faults += wrong
                notes += said
        faults += missing
        if table.num_rows and set(label_columns(task)) <= set(table.column_names):
            labelled[part] = table
    targets = None
    try:
        targets = targets_of(task, labelled) if labelled else None
    except InvalidInput as found:
        faults += found.faults
    if faults or targets is None:
        raise InvalidInput(faults, cause="data")
    return targets, notes


def _columns(task: TextClassification, table: pa.Table, label: pa.Array) -> pa.Table:
    texts = {field: plain(table[name]) for field, name in _text_columns(task).items()}
    return pa.table({**texts, "label": label})


def _compared(task: TextClassification, divided: Divided, names: tuple[str, ...]) -> list[str]:
    """Notes on the two sides beside each other; raises InvalidInput where training or metric would mean nothing."""
    train, held_out = divided.train, divided.held_out
    faults, notes = overlap(joined(train), joined(held_out), divided.held_rows)
    missing, said = missing_classes(
        train["label"], held_out["label"], names, each_is_learnt=task.problem_type == SINGLE
    )
    if faults := faults + missing:
        raise InvalidInput(faults, cause="data")
    notes += said
    if task.problem_type in (SINGLE, SEVERAL):  # ratings of equal texts may differ
        notes += contradictions(joined(train), *combinations_in(train["label"], names))
    return notes
