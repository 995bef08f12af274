"""The protocol of the worker half of a task: everything that differs between kinds of training.

WorkerHalf is a base for tasks with rows and a model of transformers. It finds, judges and divides rows, and downloads
the model, so that a task defines only what is special to it.
"""

import hashlib
import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
import pyarrow as pa

from train_func.errors import InvalidInput
from train_func.run import Run
from train_func.storage import Store, scheme_of
from train_func.tasks import RowsTask
from train_func.worker import inputs
from train_func.worker.inputs.cache import load_entry, machine_cache
from train_func.worker.inputs.findings import Findings
from train_func.worker.inputs.model_folder import ModelFolder, ModelUse, find_model
from train_func.worker.tasks.columns import judge_lengths
from train_func.worker.tasks.train_eval_split import (
    Sources,
    SplitFiles,
    TrainEvalSplit,
    find_missing_columns,
    find_sources,
    write_split,
)

if TYPE_CHECKING:
    from datasets import Dataset

AnyRowsTask = TypeVar("AnyRowsTask", bound=RowsTask)
Split = TypeVar("Split", bound=TrainEvalSplit)
ROWS_AT_ONCE = 1000  # that are hashed as one text


@dataclass(frozen=True)
class Rows:
    """The rows of both sides, not encoded; the column ``row_id`` identifies a row."""

    train: "Dataset"
    held_out: "Dataset"
    fingerprints: Mapping[str, str]
    """Fingerprints of the inputs of the rows, by field of the task."""
    labels: tuple[str, ...] = ()
    """Names of the classes, in the order of their numbers; empty if there are no classes."""
    notes: Sequence[str] = ()
    first_held_out: int | None = None
    """The row_id of the first held-out row, if the held-out rows have a file or split of their own."""


class StreamingMetric(Protocol):
    """A metric that is summed up batch by batch, on every rank by itself: no logits are kept or exchanged."""

    def count(self, logits: Any, labels: Any) -> Mapping[str, float] | None:
        """Returns the summands of one batch; None if its logits have another shape."""

    def values(self, sums: Mapping[str, float], num_rows: int) -> Mapping[str, float]:
        """Returns the metrics by name, from the sums over all ranks."""


@runtime_checkable
class PredictsRows(Protocol):
    """A streaming metric that also returns the predictions of each row."""

    def predictions(self, logits: Any, labels: Any) -> Mapping[str, Any]:
        """Returns tensors of one batch by their column in ``wire.predictions``; called after ``count`` of the batch.

        A column has a value for each row, or one for each row and label.
        """


class WorkerTask(Protocol):
    """The worker half of a task, made of (task, seed, store, cache).

    Every method but ``check`` is called on every rank and returns the same on all of them. Each raises InvalidInput
    with every fault at once, or StorageFailed. torch and datasets are imported inside of the methods that need them.
    """

    def check(self) -> Findings:
        """Returns all findings that are possible before a worker starts."""

    def rows(self) -> Rows:
        """Returns the rows to train on and the held-out rows: the same for the same seed on every machine."""

    def fetch(self) -> Mapping[str, str]:
        """Brings the model to this machine, and returns its fingerprints by field."""

    def load(self, labels: tuple[str, ...], precision: str) -> tuple[Any, Any]:
        """Returns model and processor, with the same weights for the same seed; called after ``fetch``.

        The model is None if the function makes its own. ``precision``: "fp32" or "bf16", for products; trained weights
        are float32.
        """

    def encode(self, rows: "Dataset", processor: Any) -> "Dataset":
        """Returns the rows as inputs of the model, with ``row_id``; ``input_ids`` give the length of a row."""

    def collator(self, processor: Any, *, training: bool) -> Any:
        """Returns the default collator of encoded rows; None: that of transformers.

        ``training``: whether it is for training rows, which it may change at random. The generators of random, numpy
        and torch are seeded by the place in the plan.
        """

    def num_items(self, inputs: Mapping[str, Any], num_rows: int) -> int | None:
        """Returns the weight of a batch in its step, the sum over its rows; None: the number of its labels, or rows."""

    def metric(self) -> StreamingMetric | None:
        """Returns the metric of a Trainer without compute_metrics; None: the loss alone.

        The metric may depend on the result of ``rows``; a function that has not called it has no such metric.
        """

    def pipeline(self) -> Mapping[str, Any]:
        """Returns ``task`` and other options of transformers.pipeline for the published model, plain JSON.

        Empty if no pipeline fits.
        """

    def card(self, labels: tuple[str, ...]) -> str:
        """Returns a description of the model, as Markdown, for its card.

        Front matter before the text is added to that of every card, such as ``library_name: peft``.
        """


@runtime_checkable
class Classifies(Protocol):
    """A worker half that can also classify rows with the published model."""

    @property
    def has_one_class(self) -> bool:
        """Returns whether each row has one class of ``Rows.labels``, with its number in the column ``label``."""

    def rows(self) -> Rows:
        """Returns the rows, as ``WorkerTask.rows`` does."""

    def classes(self, use: Any, rows: "Dataset") -> list[str]:
        """Returns the name of the class that the pipeline of the published model predicts for each row."""


class WorkerHalf(Generic[AnyRowsTask]):
    """Base of the worker halves of tasks with rows and a model of transformers; a subclass adds what is special."""

    needs_image_processor: ClassVar[bool] = False
    """Whether the model of the task needs an image processor in its folder."""
    model_notes: Sequence[str] = ()
    """Notes on the model that ``load`` returned last."""

    def __init__(self, task: AnyRowsTask, seed: int, store: Store | None, cache: Path) -> None:
        self.task, self.seed, self.store, self.cache = task, seed, store, cache
        self.model: ModelFolder | None = None
        """The model that ``fetch`` has brought."""
        self.loaded: Rows | None = None
        """The result of ``rows``."""

    @property
    def common_store(self) -> Store | None:
        """The store, if workers on other machines have it too; a folder is of this machine."""
        is_folder = self.store is None or scheme_of(self.store.address).local_path(self.store.address) is not None
        return None if is_folder else self.store

    def split(self, sources: Sources, findings: Findings) -> TrainEvalSplit:
        """Judges the rows of ``sources`` and divides them; does not import `datasets`, which takes seconds.

        Raises:
            InvalidInput: with every fault of the data at once.
        """
        raise NotImplementedError

    def target(self, data: TrainEvalSplit) -> str:
        """Returns the target of the predictions in a few words."""
        raise NotImplementedError

    def texts(self, rows: pa.Table) -> pa.Table | None:
        """Returns the model's texts of the rows of a side, in a column ``text``; None if they are no texts."""
        return None

    def check(self) -> Findings:
        report = Findings()
        data = report.attempt(lambda: self.divided_rows(report, self.split))
        model = report.attempt(lambda: self.find_model(weights=False))
        if model is not None:
            report.note(*model.notes)
            report.num_model_bytes = model.num_bytes
            report.add_input("model", model)
        if data is not None:
            for name, source in data.sources.read.items():
                report.add_input(name, source)
            num_rows = sum(table.num_rows for table in data.sources.tables.values())
            num_train, num_held_out = data.train.num_rows, data.held_out.num_rows
            report.facts = {"num_rows": num_rows, "num_train": num_train, "num_held_out": num_held_out}
            report.facts["labels"] = list(data.labels)
            report.held_out_sha256 = sha256_of_rows(data.held_out.drop_columns(["row_id"]), data.labels)
            report.summary = f"{num_train} rows to train, {num_held_out} held out; {self.target(data)}"
        texts = self.texts(data.train) if data is not None else None
        if texts is not None and model is not None:
            judge_lengths(texts, model.folder, getattr(self.task, "max_length", 0), report)
        return report

    def divided_rows(self, report: Findings, split: Callable[[Sources, Findings], Split]) -> Split:
        """Returns the rows of both sides, as ``split`` divides them; adds notes to ``report``.

        Raises:
            InvalidInput: with every fault of the data at once.
            StorageFailed: the store is away or denies.
        """
        return self._divided(find_sources(self.task, self.store, self.cache, report), report, split)

    def _divided(self, sources: Sources, report: Findings, split: Callable[[Sources, Findings], Split]) -> Split:
        findings = Findings()
        find_missing_columns(self.task, sources, findings)
        data = split(sources, findings)
        findings.refuse()
        report.note(*findings.notes)
        return data

    def rows(self) -> Rows:
        """Returns the rows from files; one process of a machine reads, judges, divides and writes them."""
        self.loaded = self._stored_rows()
        pa.default_memory_pool().release_unused()  # else the process that has read them keeps what that took
        return self.loaded

    def _stored_rows(self) -> Rows:
        findings = Findings()
        sources = find_sources(self.task, self.store, self.cache, findings)

        def write(folder: Path) -> None:
            noted = Findings()
            write_split(self._divided(sources, noted, self.split), noted.notes, folder)
            sources.check_unchanged(self.cache)

        stored = load_entry(self.cache, f"rows/{self._key(sources)}", write, SplitFiles.load)
        findings.note(*stored.notes)
        return Rows(
            stored.train, stored.held_out, sources.fingerprints, stored.labels, findings.notes, stored.first_held_out
        )

    def _key(self, sources: Sources) -> str:
        """Returns the SHA-256 of everything that decides the rows of both sides, and of the program that makes them."""
        identity = self.task.identity(sources.fingerprints)
        decides = {name: value for name, value in identity.items() if name not in self.task.not_of_rows}
        known_by = [decides, sources.fingerprints, self.seed, pa.__version__, np.__version__, _program(type(self))]
        return hashlib.sha256(json.dumps(known_by, sort_keys=True).encode()).hexdigest()

    def find_model(self, *, weights: bool = True) -> ModelFolder | None:
        """Returns the task's model, None if it has none; without ``weights`` those are not downloaded.

        Raises:
            InvalidInput, StorageFailed: as ``inputs.model_folder.find_model``.
        """
        if self.task.model is None:
            return None
        length = getattr(self.task, "max_length", None)
        is_default = length is not None and length == type(self.task).max_length  # type: ignore[attr-defined]
        use = ModelUse(length, is_default, self.needs_image_processor)
        return find_model(self.task.model, self.task.model_revision, use, self.store, self.cache, weights=weights)

    def fetch(self) -> Mapping[str, str]:
        self.model = self.find_model()
        return {"model": self.model.fingerprint} if self.model else {}

    def collator(self, processor: Any, *, training: bool) -> Any:
        return None

    def num_items(self, inputs: Mapping[str, Any], num_rows: int) -> int | None:
        return None


def _program(half: type) -> str:
    """Returns the SHA-256 of all modules in the folders of a worker half and of the inputs."""
    modules = (sys.modules[kind.__module__] for kind in half.__mro__ if issubclass(kind, WorkerHalf))
    folders = {Path(folder) for folder in inputs.__path__} | {Path(module.__file__ or "").parent for module in modules}
    digest = hashlib.sha256()
    for file in sorted(file for folder in folders for file in folder.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def sha256_of_rows(table: "pa.Table", labels: Sequence[str]) -> str:
    """Returns the SHA-256 (hex) of encoded rows and the names of their labels; the layout in memory does not count."""
    digest = hashlib.sha256(json.dumps([*labels]).encode())
    for batch in table.combine_chunks().to_batches(max_chunksize=ROWS_AT_ONCE):
        digest.update(json.dumps(batch.to_pydict(), sort_keys=True, default=str).encode())
    return digest.hexdigest()


def worker_half(run: Run, store: Store | None, cache: Path) -> WorkerTask:
    """Returns the worker half of the run's task.

    Raises:
        InvalidInput: the run has no task, or the task or its worker half cannot be imported.
    """
    if run.task is None:
        raise InvalidInput(
            "this run has no task, so that its session has neither model nor data: give it one, as in "
            "Run(task=TextClassification(model=..., dataset=...)), or load them in the function"
        )
    task = run.task.load()
    if faults := task.all_faults():
        raise InvalidInput(faults)
    module, _, name = task.worker.partition(":")
    try:
        half = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidInput(
            f"{task.worker}, the worker half of {task.kind}, cannot be imported: {error}", cause="source"
        ) from error
    worker: WorkerTask = half(task, run.seed, store, cache)
    return worker


def split(run: Run) -> Rows:
    """Returns the rows of a run's task, to look at: ``train`` and ``held_out``, divided as the workers divide them.

    Raises:
        InvalidInput: the data of the run cannot work, as in ``submit``.
        StorageFailed: the store is away or denies.
    """
    return worker_half(run, None, machine_cache(os.environ)).rows()
