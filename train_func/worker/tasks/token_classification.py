"""Token classification: sentences whose words have tags, and a model with a head for the tags of tokens."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from train_func.counted import counted, listed
from train_func.errors import InvalidInput
from train_func.storage import Store
from train_func.tasks import TokenClassification
from train_func.worker.inputs.model import FoundModel, find_model
from train_func.worker.inputs.model_folder import ModelUse
from train_func.worker.tasks.protocol import Findings, Metric, Rows
from train_func.worker.tasks.tag_scores import TagScores
from train_func.worker.tasks.tagged_rows import split_tagged_rows, texts_of
from train_func.worker.tasks.texts import length_notes

if TYPE_CHECKING:
    from datasets import Dataset

MOST_TAGS = 10  # shown by name
SPACED = (
    "A word has the tag of its first token. Put spaces between words, and between words and punctuation, as between "
    "the words of the rows: many tokenizers tell where a word begins by the space before it."
)


class TokenClassifier:
    """The worker half of TokenClassification."""

    def __init__(self, task: TokenClassification, seed: int, store: Store | None, cache: Path) -> None:
        self._task, self._seed, self._store, self._cache = task, seed, store, cache
        self._model: FoundModel | None = None
        self._labels: tuple[str, ...] = ()

    def check(self) -> Findings:
        found = Findings()
        data = found.tried(lambda: split_tagged_rows(self._task, self._seed, self._store, self._cache))
        model = found.tried(lambda: self._find(weights=False))
        if model is not None:
            found.add_model(model)
        if data is not None:
            found.add_data(data, f"{counted(len(data.labels), 'tag')}: {listed(data.labels, MOST_TAGS)}")
        if data is not None and model is not None:
            texts = pa.table({"text": texts_of(data.train)})
            found.notes += length_notes(texts, model.folder, self._task.max_length)
        return found

    def rows(self) -> Rows:
        from datasets import Dataset

        split = split_tagged_rows(self._task, self._seed, self._store, self._cache)
        self._labels = split.labels
        train, held_out = Dataset(split.train), Dataset(split.held_out)
        return Rows(train, held_out, split.sources.fingerprints, split.labels, split.notes)

    def _find(self, *, weights: bool = True) -> FoundModel:
        use = ModelUse(
            "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
            "token classifier",
            "take a text encoder such as bert, roberta, distilbert or deberta-v2",
            self._task.max_length,
            has_default_length=self._task.max_length == TokenClassification.max_length,
        )
        return find_model(self._task.model, self._task.model_revision, use, self._store, self._cache, weights=weights)

    def fetch(self) -> Mapping[str, str]:
        self._model = self._find()
        return {"model": self._model.fingerprint}

    def load(self, labels: tuple[str, ...], precision: str) -> tuple[Any, Any]:
        from transformers import AutoModelForTokenClassification

        from train_func.worker.inputs.model_loading import load_model, load_tokenizer

        assert self._model is not None
        tokenizer = load_tokenizer(self._model, of_words=True)
        if not tokenizer.is_fast:
            raise InvalidInput(
                f"{self._model.where}: its tokenizer, {type(tokenizer).__name__}, does not tell which word a token "
                "comes from; take a model with a tokenizer.json",
                cause="model",
            )
        tokenizer.model_max_length = self._task.max_length  # of each part of a text that the published model is given
        names: dict[str, Any] = {
            "id2label": dict(enumerate(labels)),
            "label2id": {name: code for code, name in enumerate(labels)},
        }
        model = load_model(
            self._model, AutoModelForTokenClassification, tokenizer, self._seed, num_labels=len(labels), **names
        )
        return model, tokenizer

    def encode(self, rows: "Dataset", processor: Any) -> "Dataset":
        from train_func.worker.tasks.word_tokens import tokenise_words

        return tokenise_words(rows, processor, self._task.max_length, self._cache)

    def collator(self, processor: Any, *, training: bool) -> Any:
        from transformers import DataCollatorForTokenClassification

        return DataCollatorForTokenClassification(processor)

    def num_items(self, inputs: Mapping[str, Any], num_rows: int) -> int | None:
        return None

    def metric(self) -> Metric | None:
        return TagScores(self._labels) if self._labels else None

    def pipeline(self) -> Mapping[str, Any]:
        overlap = self._task.max_length // 4  # tokens; a longer text is read in parts, each with some of the one before
        # A word has the tag of its first token: the others are not trained.
        return {"task": "token-classification", "aggregation_strategy": "first", "stride": overlap}

    def card(self, labels: tuple[str, ...]) -> str:
        names = "\n".join(f"- {name}" for name in labels)
        return f"A classifier of words in sentences, with the tags\n\n{names}\n\n{SPACED}\n"
