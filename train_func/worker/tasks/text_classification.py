"""Text classification: rows of texts and classes, and a model with a head for the classes."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from train_func.storage import Store
from train_func.tasks import TextClassification
from train_func.worker.model.source import FoundModel, find_model

if TYPE_CHECKING:
    from datasets import Dataset

    from train_func.worker.data.split import Prepared


class TextClassifier:
    """The worker half of TextClassification. torch and datasets are imported only by what needs them."""

    def __init__(self, task: TextClassification, seed: int, store: Store | None, cache: Path) -> None:
        self._task, self._seed, self._store, self._cache = task, seed, store, cache

    def rows(self) -> "Prepared":
        """The rows to train on and those held out.

        Raises:
            InvalidInput: with every fault of the data at once.
            StorageFailed: the store is away or denies.
        """
        from train_func.worker.data.split import prepare

        return prepare(self._task, self._seed, self._store, self._cache)

    def files(self) -> FoundModel:
        """The folder with model and processor, on this machine.

        Raises:
            InvalidInput: it cannot be found, or not be loaded.
            StorageFailed: the store is away or denies.
        """
        return find_model(self._task, self._store, self._cache)

    def processor(self, found: FoundModel) -> Any:
        """The tokenizer."""
        from train_func.worker.model.loading import load_tokenizer

        return load_tokenizer(found)

    def model(self, found: FoundModel, labels: tuple[str, ...]) -> Any:
        """The model with one output per label, the same weights for the same seed."""
        from train_func.worker.model.loading import load_model

        return load_model(found, labels, self._seed)

    def encode(self, rows: "Dataset", processor: Any) -> "Dataset":
        """The rows as the model takes them."""
        from train_func.worker.data.tokens import tokenise

        return tokenise(rows, processor, self._task.max_length, self._cache)
