"""Text classification: rows of texts and classes, and a model with a head for the classes."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from train_func.storage import Store
from train_func.tasks import TextClassification
from train_func.worker.inputs.model import FoundModel, find_model
from train_func.worker.inputs.model_folder import ModelUse
from train_func.worker.tasks.accuracy import Accuracy
from train_func.worker.tasks.protocol import Findings, Metric, Rows
from train_func.worker.tasks.texts import length_notes
from train_func.worker.tasks.train_eval_split import TrainEvalSplit, split_rows

if TYPE_CHECKING:
    from datasets import Dataset

MOST_CLASSES = 8  # shown by name


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
            _add_data(found, data)
        if data is not None and model is not None:
            found.notes += length_notes(data.train["text"], model.folder, self._task.max_length)
        return found

    def rows(self) -> Rows:
        from datasets import Dataset

        split = split_rows(self._task, self._seed, self._store, self._cache)
        train, held_out = Dataset(split.train), Dataset(split.held_out)
        return Rows(train, held_out, split.sources.fingerprints, split.labels, split.notes)

    def fetch(self) -> Mapping[str, str]:
        self._found = find_text_model(self._task, self._store, self._cache)
        return {"model": self._found.fingerprint}

    def load(self, labels: tuple[str, ...]) -> tuple[Any, Any]:
        assert self._found is not None
        return load_classifier(self._found, labels, self._seed)

    def encode(self, rows: "Dataset", processor: Any) -> "Dataset":
        from train_func.worker.tasks.tokens import tokenise

        return tokenise(rows, processor, self._task.max_length, self._cache)

    def collator(self, processor: Any) -> Any:
        return None

    def num_items(self, inputs: Mapping[str, Any], num_rows: int) -> int | None:
        return None

    def metric(self) -> Metric:
        return Accuracy()

    def pipeline(self) -> Mapping[str, Any]:
        return {"task": "text-classification", "truncation": True}

    def card(self, labels: tuple[str, ...]) -> str:
        of = "\n".join(f"- {name}" for name in labels)
        return f"---\npipeline_tag: text-classification\n---\n\nA text classifier, with the classes\n\n{of}\n"


def find_text_model(task: TextClassification, store: Store | None, cache: Path, *, weights: bool = True) -> FoundModel:
    """The task's model on this machine; raises InvalidInput and StorageFailed as ``find_model`` does."""
    use = ModelUse(
        "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
        "text classifier",
        "take a text encoder such as bert, roberta, distilbert or deberta-v2",
        task.max_length,
    )
    return find_model(task.model, task.model_revision, use, store, cache, weights=weights)


def load_classifier(found: FoundModel, labels: tuple[str, ...], seed: int) -> tuple[Any, Any]:
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
        problem_type="single_label_classification",
    )
    return model, tokenizer


def _add_data(found: Findings, data: TrainEvalSplit) -> None:
    num_train, num_held_out = data.train.num_rows, data.held_out.num_rows
    found.notes += data.notes
    found.fingerprints |= data.sources.fingerprints
    found.inputs |= data.sources.local
    found.facts = {"num_rows": data.sources.num_rows, "num_train": num_train, "num_held_out": num_held_out}
    found.facts["labels"] = list(data.labels)
    if data.sources.commit:
        found.commits["dataset_revision"] = data.sources.commit
    named = [*data.labels[:MOST_CLASSES], *(["..."] if len(data.labels) > MOST_CLASSES else [])]
    found.summary = (
        f"{num_train} rows to train, {num_held_out} held out; {len(data.labels)} classes: {', '.join(named)} "
        f"(majority-class baseline: {_baseline(data):.0%} right)"
    )


def _baseline(data: TrainEvalSplit) -> float:
    """Share of the held-out rows that have the class most frequent in training."""
    most = np.bincount(data.train["label"].to_numpy()).argmax()
    return float(np.mean(data.held_out["label"].to_numpy() == most))
