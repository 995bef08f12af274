"""Loading: rows, model and processor of a run's task: the same on all ranks, and those that it was submitted with."""

import importlib
from functools import cached_property
from pathlib import Path
from typing import Any

from datasets import Dataset

from train_func.errors import InvalidInput
from train_func.records import RunRecord
from train_func.storage import Store
from train_func.worker.data import verify
from train_func.worker.data.split import Prepared
from train_func.worker.training import world


class Loading:
    """What the task of a run loads; every method is to be called on every rank."""

    def __init__(self, record: RunRecord, store: Store, cache: Path) -> None:
        self._record, self._store, self._cache = record, store, cache
        self.processor: Any = None
        """That of the model that was loaded last."""

    @cached_property
    def _task(self) -> Any:
        """The worker half of the task.

        Raises:
            InvalidInput: the run has no task, so that there is neither a model nor data to load.
        """
        if self._record.run.task is None:
            raise InvalidInput(
                "this run has no task, so that its session has neither model nor data: give it one, as in "
                "Run(task=TextClassification(model=..., dataset=...)), or load them in the function"
            )
        task = self._record.run.task.load()
        module, _, name = task.worker.partition(":")
        half = getattr(importlib.import_module(module), name)
        return half(task, self._record.run.seed, self._store, self._cache)

    @cached_property
    def rows(self) -> Prepared:
        """The rows to train on and those held out."""
        found = world.on_all_ranks(self._read)
        for note in found.notes:
            world.note(note)
        return found

    def _read(self) -> Prepared:
        found: Prepared = self._task.rows()
        verify.check_unchanged(self._record, found.fingerprints, "data")
        return found

    def model(self) -> tuple[Any, Any]:
        """The model and its processor."""
        labels = self.rows.labels
        found = world.on_all_ranks(self._files)
        self.processor = world.on_all_ranks(lambda: self._task.processor(found))
        return world.on_all_ranks(lambda: self._task.model(found, labels)), self.processor

    def _files(self) -> Any:
        found = self._task.files()
        verify.check_unchanged(self._record, {"model": found.fingerprint}, "model")
        return found

    def data(self, processor: Any) -> tuple[Dataset, Dataset]:
        """The rows to train on and those held out, as the model takes them."""
        train, held_out = self.rows.train, self.rows.held_out
        return world.on_all_ranks(lambda: (self._task.encode(train, processor), self._task.encode(held_out, processor)))
