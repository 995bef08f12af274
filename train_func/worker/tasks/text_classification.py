"""Text classification: texts or pairs of them with one class, several labels or a number, and a model with a head."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from train_func.counted import listed
from train_func.errors import InvalidInput
from train_func.storage import Store
from train_func.tasks import REGRESSION, SEVERAL, SINGLE, TextClassification
from train_func.worker.inputs.model import FoundModel, find_model
from train_func.worker.inputs.model_folder import ModelUse
from train_func.worker.tasks.columns import (
    contradictions,
    joined,
    length_notes,
    missing_columns,
    overlap,
    plain,
    text_faults,
)
from train_func.worker.tasks.metrics import Accuracy, LabelScores, NumberErrors
from train_func.worker.tasks.protocol import Findings, Metric, Rows
from train_func.worker.tasks.targets import Targets, combinations_in, majority_baseline, missing_classes, targets_of
from train_func.worker.tasks.train_eval_split import Divided, TrainEvalSplit, divide, find_sources, where

if TYPE_CHECKING:
    from datasets import Dataset

MOST_CLASSES = 8  # shown by name
ROWS_AT_ONCE = 32  # that a published model is asked for
METRICS: dict[str, type[Metric]] = {SINGLE: Accuracy, SEVERAL: LabelScores, REGRESSION: NumberErrors}


class TextClassifier:
    """The worker half of TextClassification."""

    def __init__(self, task: TextClassification, seed: int, store: Store | None, cache: Path) -> None:
        self._task, self._seed, self._store, self._cache = task, seed, store, cache
        self._found: FoundModel | None = None

    def check(self) -> Findings:
        found = Findings()
        data = found.tried(lambda: split_rows(self._task, self._seed, self._store, self._cache))
        model = found.tried(lambda: find_text_model(self._task, self._store, self._cache, weights=False))
        if model is not None:
            found.add_model(model)
        if data is not None:
            found.add_data(data, _target_summary(self._task.problem_type, data))
        if data is not None and model is not None:
            found.notes += length_notes(data.train, model.folder, self._task.max_length)
        return found

    def rows(self) -> Rows:
        from datasets import Dataset

        split = split_rows(self._task, self._seed, self._store, self._cache)
        train, held_out = Dataset(split.train), Dataset(split.held_out)
        return Rows(train, held_out, split.sources.fingerprints, split.labels, split.notes)

    def fetch(self) -> Mapping[str, str]:
        self._found = find_text_model(self._task, self._store, self._cache)
        return {"model": self._found.fingerprint}

    def load(self, labels: tuple[str, ...], precision: str) -> tuple[Any, Any]:
        assert self._found is not None
        names = labels or label_columns(self._task)  # a number is called as its column
        return load_classifier(self._found, names, self._seed, self._task.problem_type)

    def encode(self, rows: "Dataset", processor: Any) -> "Dataset":
        from train_func.worker.tasks.tokens import tokenise

        return tokenise(rows, processor, self._task.max_length, self._cache)

    def collator(self, processor: Any, *, training: bool) -> Any:
        return None

    def num_items(self, inputs: Mapping[str, Any], num_rows: int) -> int | None:
        return None

    def metric(self) -> Metric:
        return METRICS[self._task.problem_type]()

    def pipeline(self) -> Mapping[str, Any]:
        every = {"top_k": None} if self._task.problem_type == SEVERAL else {}  # a score for each of the labels
        cut = {"truncation": True, "max_length": self._task.max_length}  # as it was trained
        return {"task": "text-classification", **cut, **every}

    @property
    def has_one_class(self) -> bool:
        return self._task.problem_type == SINGLE

    def classes(self, use: Any, rows: "Dataset") -> list[str]:
        pairs = "text_pair" in rows.column_names
        asked = [{"text": row["text"], "text_pair": row["text_pair"]} for row in rows] if pairs else list(rows["text"])
        return [answer["label"] for answer in use(asked, batch_size=ROWS_AT_ONCE)]

    def card(self, labels: tuple[str, ...]) -> str:
        of = "pairs of texts" if self._task.text_pair else "texts"
        names = "\n".join(f"- {name}" for name in labels)
        what = {
            SINGLE: f"A classifier of {of}, with the classes\n\n{names}\n",
            SEVERAL: f"A classifier of {of}, each with any number of the labels\n\n{names}\n",
            REGRESSION: f"A model that predicts the number {self._task.label!r} of {of}.\n",
        }
        return what[self._task.problem_type]


def find_text_model(task: TextClassification, store: Store | None, cache: Path, *, weights: bool = True) -> FoundModel:
    """The task's model on this machine; raises InvalidInput and StorageFailed as ``find_model`` does."""
    use = ModelUse(
        "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
        "text classifier",
        "take a text encoder such as bert, roberta, distilbert or deberta-v2",
        task.max_length,
        has_default_length=task.max_length == TextClassification.max_length,
    )
    return find_model(task.model, task.model_revision, use, store, cache, weights=weights)


def load_classifier(
    found: FoundModel, labels: tuple[str, ...], seed: int, problem_type: str = SINGLE
) -> tuple[Any, Any]:
    """The model with one output per label, and its tokenizer; raises InvalidInput as ``load_model`` does."""
    from transformers import AutoModelForSequenceClassification

    from train_func.worker.inputs.model_loading import load_model, load_tokenizer

    tokenizer = load_tokenizer(found)
    model = load_model(
        found,
        AutoModelForSequenceClassification,
        tokenizer,
        seed,
        num_labels=len(labels),
        id2label=dict(enumerate(labels)),
        label2id={name: index for index, name in enumerate(labels)},
        problem_type=problem_type,
    )
    return model, tokenizer


def _target_summary(problem_type: str, data: TrainEvalSplit) -> str:
    """What is predicted, and what a model that has learnt nothing reaches."""
    train, held_out = data.train["label"], data.held_out["label"]
    classes = listed(data.labels, MOST_CLASSES)
    if problem_type == SINGLE:
        right = majority_baseline(train.to_numpy(), held_out.to_numpy())
        return f"{len(data.labels)} classes: {classes} (majority-class baseline: {right:.0%} right)"
    if problem_type == SEVERAL:
        per_row = float(np.sum(train.combine_chunks().flatten().to_numpy()) / len(train))
        return f"{len(data.labels)} labels: {classes} ({per_row:.1f} per row)"
    numbers = train.to_numpy()
    mse = float(np.mean((held_out.to_numpy() - numbers.mean()) ** 2))
    return f"numbers from {numbers.min():g} to {numbers.max():g} (always predicting their mean: mse {mse:.3g})"


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
