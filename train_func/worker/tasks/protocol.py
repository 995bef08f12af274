"""The protocol of a task's worker half: all that is done differently for each kind of training.

WorkerHalf is a base for tasks with rows and a model of transformers: it finds, judges and divides rows, and brings the
model, so that a task says only what is special in it.
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
from train_func.storage import Store
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
    """Rows of both sides, not yet encoded; the column ``row_id`` tells them apart."""

    train: "Dataset"
    held_out: "Dataset"
    fingerprints: Mapping[str, str]
    """Fingerprints of what they were read from, by the field of the task that names it."""
    labels: tuple[str, ...] = ()
    """Names of the classes, in the order of their numbers, where there are classes."""
    notes: Sequence[str] = ()
    first_held_out: int | None = None
    """The row_id of the first held-out row, where these are a file or split of their own."""


class StreamingMetric(Protocol):
    """A metric that is summed up batch by batch, on every rank by itself: no logits are kept or exchanged."""

    def count(self, logits: Any, labels: Any) -> Mapping[str, float] | None:
        """Returns what one batch adds to the sums; None where it has no such metric."""

    def values(self, sums: Mapping[str, float], num_rows: int) -> Mapping[str, float]:
        """The metrics by name, from the sums over all ranks."""


@runtime_checkable
class PredictsRows(Protocol):
    """A streaming metric that tells also what is predicted of each row."""

    def predictions(self, logits: Any, labels: Any) -> Mapping[str, Any]:
        """Returns tensors of one batch by their column in ``wire.predictions``, after ``count`` has taken the batch.

        A column has a value for each row, or one for each row and label.
        """


class WorkerTask(Protocol):
    """The worker half of a task, made of (task, seed, store, cache).

    Every method but ``check`` is called on every rank and returns the same on all of them. Each raises InvalidInput
    with every fault at once, or StorageFailed. torch and datasets are imported inside of the methods that need them.
    """

    def check(self) -> Findings:
        """All that can be known before a worker starts."""

    def rows(self) -> Rows:
        """The rows to train on and those held out: the same for the same seed on every machine."""

    def fetch(self) -> Mapping[str, str]:
        """Brings the model to this machine; its fingerprints, by field."""

    def load(self, labels: tuple[str, ...], precision: str) -> tuple[Any, Any]:
        """The model, with the same weights for the same seed, and its processor, after ``fetch``.

        ``precision``: "fp32" or "bf16", in which products are computed; weights that are trained are float32. None for
        the model where the function makes its own.
        """

    def encode(self, rows: "Dataset", processor: Any) -> "Dataset":
        """The rows as the model takes them, with their ``row_id``; their ``input_ids`` tell how long they are."""

    def collator(self, processor: Any, *, training: bool) -> Any:
        """Makes one batch of encoded rows, unless the function gives another; None: that of transformers.

        ``training``: whether of rows to train on, which it may change at random; held-out rows stay as they are. What
        it draws from the generators of random, numpy and torch depends on the place in the plan alone.
        """

    def num_items(self, inputs: Mapping[str, Any], num_rows: int) -> int | None:
        """The weight of a batch in its step, the sum of those of its rows; None: its labels, or its rows."""

    def metric(self) -> StreamingMetric | None:
        """Returns what is measured where the function gives Trainer no compute_metrics; None: the loss alone.

        It may depend on what ``rows`` has returned; where the function has not asked for rows, it has none.
        """

    def pipeline(self) -> Mapping[str, Any]:
        """``task`` and other options of transformers.pipeline by which the published model is used, plain JSON.

        Empty where there is none for it.
        """

    def card(self, labels: tuple[str, ...]) -> str:
        """Returns what the model is, as Markdown, for the card that is published with it.

        Front matter before it is added to that of every card, such as ``library_name: peft``.
        """


@runtime_checkable
class Classifies(Protocol):
    """A worker half that tells also how its published model is asked for the classes of rows."""

    @property
    def has_one_class(self) -> bool:
        """Returns whether each row has one class out of ``Rows.labels``, its number in the column ``label``."""

    def rows(self) -> Rows:
        """Returns the rows, as ``WorkerTask.rows`` does."""

    def classes(self, use: Any, rows: "Dataset") -> list[str]:
        """The name of the class that the pipeline of the published model gives to each row."""


@runtime_checkable
class NotesModel(Protocol):
    """A worker half that has also something to tell of the model that it has loaded."""

    model_notes: Sequence[str]
    """What a person should know of the model that ``load`` has returned last."""


class WorkerHalf(Generic[AnyRowsTask]):
    """Base of the worker halves of tasks with rows and a model of transformers; a subclass says what differs."""

    needs_image_processor: ClassVar[bool] = False
    """Whether the model of the task needs one beside it."""

    def __init__(self, task: AnyRowsTask, seed: int, store: Store | None, cache: Path) -> None:
        self.task, self.seed, self.store, self.cache = task, seed, store, cache
        self.model: ModelFolder | None = None
        """What ``fetch`` has brought."""
        self.loaded: Rows | None = None
        """What ``rows`` has returned."""

    def split(self, sources: Sources, findings: Findings) -> TrainEvalSplit:
        """Judges the rows of ``sources`` and divides them, without the seconds that importing `datasets` takes.

        Raises:
            InvalidInput: with every fault of the data at once.
        """
        raise NotImplementedError

    def target(self, data: TrainEvalSplit) -> str:
        """Returns what is predicted of the rows, in few words."""
        raise NotImplementedError

    def texts(self, rows: pa.Table) -> pa.Table | None:
        """Returns what the model is given of the rows of a side, in a column ``text``; None where that is no text."""
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
        """The rows of both sides, as ``split`` divides them; notes in ``report`` what is to be known of them.

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
        """One process of a machine reads, judges and divides the rows and writes them; all map its files."""
        self.loaded = self._stored_rows()
        pa.default_memory_pool().release_unused()  # else the process that has read them keeps what that took
        return self.loaded

    def _stored_rows(self) -> Rows:
        findings = Findings()
        sources = find_sources(self.task, self.store, self.cache, findings)

        def write(folder: Path) -> None:
            noted = Findings()
            write_split(self._divided(sources, noted, self.split), noted.notes, folder)

        stored = load_entry(self.cache, f"rows/{self._key(sources)}", write, SplitFiles.load)
        findings.note(*stored.notes)
        return Rows(
            stored.train, stored.held_out, sources.fingerprints, stored.labels, findings.notes, stored.first_held_out
        )

    def _key(self, sources: Sources) -> str:
        """SHA-256 over everything that decides the rows of both sides, and the program that makes them."""
        identity = self.task.identity(sources.fingerprints)
        decides = {name: value for name, value in identity.items() if name not in self.task.not_of_rows}
        known_by = [decides, sources.fingerprints, self.seed, pa.__version__, np.__version__, _program(type(self))]
        return hashlib.sha256(json.dumps(known_by, sort_keys=True).encode()).hexdigest()

    def find_model(self, *, weights: bool = True) -> ModelFolder | None:
        """The task's model on this machine, without ``weights`` as far as it can be judged; None where it has none.

        Raises:
            InvalidInput, StorageFailed: as ``inputs.model.find_model``.
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
    """SHA-256 of the modules that read, judge and divide the rows of a worker half, and of those beside them."""
    own = (sys.modules[kind.__module__] for kind in half.__mro__ if issubclass(kind, WorkerHalf))
    folders = {Path(folder) for folder in inputs.__path__} | {Path(module.__file__ or "").parent for module in own}
    digest = hashlib.sha256()
    for file in sorted(file for folder in folders for file in folder.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def sha256_of_rows(table: "pa.Table", labels: Sequence[str]) -> str:
    """Hex; of the rows as they are encoded, and of what their labels mean, however their bytes lie in memory."""
    digest = hashlib.sha256(json.dumps([*labels]).encode())
    for batch in table.combine_chunks().to_batches(max_chunksize=ROWS_AT_ONCE):
        digest.update(json.dumps(batch.to_pydict(), sort_keys=True, default=str).encode())
    return digest.hexdigest()


def worker_half(run: Run, store: Store | None, cache: Path) -> WorkerTask:
    """The worker half of the run's task.

    Raises:
        InvalidInput: the run has no task, or its task or the half of it cannot be imported.
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
    made: WorkerTask = half(task, run.seed, store, cache)
    return made


def split(run: Run) -> Rows:
    """Returns the rows of a run's task, to look at: ``train`` and ``held_out``, divided as the workers divide them.

    Raises:
        InvalidInput: the data of the run cannot work, as in ``submit``.
        StorageFailed: the store is away or denies.
    """
    return worker_half(run, None, machine_cache(os.environ)).rows()
