"""Loads rows, model and processor of a run's task: the same on all ranks, unchanged since the submission."""

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from datasets import Dataset

from train_func.errors import Cause, InvalidInput
from train_func.inputs import key_of, variable_of
from train_func.storage import Store
from train_func.wire.layout import PIPELINE
from train_func.wire.records import RunRecord
from train_func.worker.inputs.model_folder import ModelUse, find_model
from train_func.worker.inputs.named import bring, find, link
from train_func.worker.publish.card import TaskPart, fields_of
from train_func.worker.rank import world
from train_func.worker.tasks.protocol import Rows, WorkerTask, worker_half
from train_func.worker.training.audit import RowIds
from train_func.worker.training.plan import row_ids_of


class Loading:
    """What the task of a run loads; every method is to be called on every rank."""

    def __init__(self, record: RunRecord, store: Store, cache: Path) -> None:
        self._record, self._store, self._cache = record, store, cache
        self.processor: Any = None
        """The processor with which rows were encoded last, or else that of the model."""
        self.train_ids: RowIds | None = None
        """Ids of the rows that ``data`` gave to train on."""
        self.held_out: Dataset | None = None
        """The held-out rows that it gave."""
        self._encoded: tuple[Any, Any] = (None, None)
        """Form of the training rows that ``data`` gave, and the processor that it was given."""

    @cached_property
    def task(self) -> WorkerTask:
        """The worker half of the task; raises InvalidInput when the run has none."""
        return worker_half(self._record.run, self._store, self._cache)

    @cached_property
    def rows(self) -> Rows:
        """The rows to train on and those held out."""

        def read() -> Rows:
            rows = self.task.rows()
            _check_unchanged(self._record, rows.fingerprints, "data")
            return rows

        rows = world.on_all_ranks(read)
        for note in rows.notes:
            world.note(note)
        return rows

    def model(self, precision: str) -> tuple[Any, Any]:
        """The model and its processor; ``precision``: as the run's Numerics have it."""
        labels = self.rows.labels
        world.on_all_ranks(lambda: _check_unchanged(self._record, self.task.fetch(), "model"))
        model, self.processor = world.on_all_ranks(lambda: self.task.load(labels, precision))
        for note in getattr(self.task, "model_notes", ()):  # a half without the base of ours may have none
            world.note(note)
        return model, self.processor

    def data(self, processor: Any) -> tuple[Dataset, Dataset]:
        """The rows to train on and those held out, as the model takes them."""
        rows = self.rows

        def encode() -> list[Dataset]:
            encoded, refusals = [], []
            for side in (rows.train, rows.held_out):
                try:
                    encoded.append(self.task.encode(side, processor))
                except InvalidInput as refusal:
                    refusals.append(refusal)
            if refusals:
                raise InvalidInput([fault for each in refusals for fault in each.faults], cause=refusals[0].cause)
            return encoded

        train, held_out = world.on_all_ranks(encode)
        self.train_ids, self.held_out = row_ids_of(train), held_out
        self._encoded = _form(train), processor
        self.processor = processor or self.processor
        return train, held_out

    def collator(self, rows: Dataset) -> Any:
        """Returns what makes batches of ``rows``, if they are like those of ``data`` to train on, and the task says.

        Some of those, or all in another order, are like them; with other columns, or in a format, they are not.
        """
        form, processor = self._encoded
        return self.task.collator(processor, training=True) if _form(rows) == form else None

    def input(self, name: str, environment: Mapping[str, str], folder: Path) -> Path:
        """Returns the path of an input, brought by the supervisor, or else now, and linked in ``folder``."""
        inputs = self._record.run.inputs
        if name not in inputs:
            known = f"its inputs are {', '.join(inputs)}" if inputs else "it has no inputs"
            raise InvalidInput(
                f"the run has no input {name!r}: {known}. Submit with Run(inputs={{{name!r}: 'file'}})", cause="code"
            )
        if path := environment.get(variable_of(name)):
            return Path(path)

        def bring_now() -> Path:
            expected = self._record.fingerprints.get(key_of(name))
            if expected is None:  # called without a submission, which would have fixed it
                expected = find(name, inputs[name], self._store, self._cache).fingerprint
            path = bring(name, inputs[name], expected, self._store, self._cache)
            return link(path, folder / "inputs", name, expected)

        return world.on_all_ranks(bring_now)

    def base(self) -> Path | None:
        """The folder of the task's model, on which ``load`` puts adapters; None where the task names none.

        Raises:
            InvalidInput: it is not found, or has changed; StorageFailed: the store is away or denies.
        """
        fields = fields_of(self._record)
        if not (address := fields.get("model")):
            return None
        return find_model(address, fields.get("model_revision", "main"), ModelUse(), self._store, self._cache).folder

    def use(self) -> dict[str, str]:
        """Files that say how the model is used, by name; none where the function has not loaded the task's rows."""
        return {PIPELINE: json.dumps(dict(self.task.pipeline()))} if self._has_rows else {}

    def card_part(self) -> TaskPart | None:
        """Returns what the task says in the card of its model; None where the function has not loaded its rows."""
        if not self._has_rows:
            return None
        rows, pipeline = self.rows, dict(self.task.pipeline())
        return TaskPart(
            text=self.task.card(rows.labels),
            pipeline=pipeline,
            num_train=len(rows.train),
            num_held_out=len(rows.held_out),
            fingerprints=dict(rows.fingerprints),
            labels=() if pipeline else rows.labels,  # a model of a pipeline has them in its configuration
        )

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes; none where the function has not loaded the task's rows."""
        return self.rows.labels if self._has_rows else ()

    @property
    def _has_rows(self) -> bool:
        return "rows" in self.__dict__


def _form(rows: Dataset) -> tuple[Any, Any]:
    """Returns what some of the rows, and all in another order, have in common."""
    return rows.features, rows.format


def _check_unchanged(record: RunRecord, fingerprints: Mapping[str, str], cause: Cause) -> None:
    """Raises InvalidInput when an input, by its field, has another fingerprint than at the submission."""
    task = record.run.task and record.run.task.load()
    faults = [
        f"{getattr(task, field)} has changed since {record.name} was submitted: its fingerprint was "
        f"{record.fingerprints[field]} and is {sha256}; submit again, as a new run"
        for field, sha256 in fingerprints.items()
        if record.fingerprints.get(field, sha256) != sha256
    ]
    if faults:
        raise InvalidInput(faults, cause=cause)
