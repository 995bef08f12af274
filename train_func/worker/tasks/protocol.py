"""The protocol of a task's worker half: all that is done differently for each kind of training."""

import hashlib
import importlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from train_func.errors import Cause, InvalidInput, StorageFailed
from train_func.run import Run
from train_func.storage import Store
from train_func.worker.inputs.cache import machine_cache
from train_func.worker.inputs.locate import LocalFiles

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset

    from train_func.worker.inputs.model import FoundModel
    from train_func.worker.inputs.named import FoundInput
    from train_func.worker.inputs.reader import Source
    from train_func.worker.tasks.train_eval_split import TrainEvalSplit

Found = TypeVar("Found")
ROWS_AT_ONCE = 1000  # that are hashed as one text


@dataclass(frozen=True)
class Rows:
    """Rows of both sides, not yet encoded; the column ``row_id`` tells them apart."""

    train: "Dataset"
    held_out: "Dataset"
    fingerprints: Mapping[str, str]
    """Of what they were read from, by the field of the task that names it."""
    labels: tuple[str, ...] = ()
    """Names of the classes, in the order of their numbers, where there are classes."""
    notes: Sequence[str] = ()


@dataclass
class Findings:
    """What the check of a task has found, without loading torch."""

    faults: list[tuple[Cause, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    """Of the data, by name, plain JSON; ``num_train`` is the number of training rows."""
    summary: str = ""
    """The data in few words, for the line that tells of the submission."""
    fingerprints: dict[str, str] = field(default_factory=dict)
    """Of every input, by its field or key: the commit of what lies on the Hub, else of the content."""
    inputs: dict[str, LocalFiles] = field(default_factory=dict)
    """Files of this machine that are read, by field or key: a cluster has to be given them."""
    commits: dict[str, str] = field(default_factory=dict)
    """What branches and tags of the Hub are at this moment, by the field that names them; addresses by key."""
    num_model_bytes: int = 0
    """Of the weights that every worker loads."""
    held_out_sha256: str = ""
    """Of the content of the held-out rows, in their order: two runs with the same are measured on the same rows."""

    def tried(self, work: Callable[[], Found]) -> Found | None:
        """What ``work`` returns, or None with its faults noted."""
        try:
            return work()
        except InvalidInput as error:
            self.faults += [(error.cause, fault) for fault in error.faults]
        except StorageFailed as error:
            self.faults.append((error.cause, str(error)))
        return None

    def add_model(self, model: "FoundModel") -> None:
        """What is known of the model in the fields ``model`` and ``model_revision``."""
        self.notes += model.notes
        self.num_model_bytes = model.num_bytes
        self.add_input("model", model)

    def add_data(self, data: "TrainEvalSplit", target: str) -> None:
        """What is known of the rows; ``target``: what is predicted of them, in few words."""
        num_train, num_held_out = data.train.num_rows, data.held_out.num_rows
        self.notes += data.notes
        for name, source in data.sources.read.items():
            self.add_input(name, source)
        self.facts = {"num_rows": data.sources.num_rows, "num_train": num_train, "num_held_out": num_held_out}
        self.facts["labels"] = list(data.labels)
        self.held_out_sha256 = sha256_of_rows(data.held_out.drop_columns(["row_id"]), data.labels)
        self.summary = f"{num_train} rows to train, {num_held_out} held out; {target}"

    def add_input(self, field: str, found: "FoundModel | Source") -> None:
        """What is known of an input of the task, which names it in ``field``, and its revision beside that."""
        self.fingerprints[field] = found.fingerprint
        if found.local:
            self.inputs[field] = found.local
        if found.commit:
            self.commits[f"{field}_revision"] = found.commit

    def add_named(self, key: str, found: "FoundInput") -> None:
        """What is known of an input of the run, by its key."""
        self.notes += found.notes
        self.fingerprints[key] = found.fingerprint
        if found.local:
            self.inputs[key] = found.local
        if found.pinned:
            self.commits[key] = found.pinned


def sha256_of_rows(table: "pa.Table", labels: Sequence[str]) -> str:
    """Hex; of the rows as they are encoded, and of what their labels mean, however their bytes lie in memory."""
    digest = hashlib.sha256(json.dumps([*labels]).encode())
    for batch in table.combine_chunks().to_batches(max_chunksize=ROWS_AT_ONCE):
        digest.update(json.dumps(batch.to_pydict(), sort_keys=True, default=str).encode())
    return digest.hexdigest()


class Metric(Protocol):
    """A metric that is summed up batch by batch, on every rank by itself: no logits are kept or exchanged."""

    def count(self, logits: Any, labels: Any) -> Mapping[str, float] | None:
        """What one batch adds to the sums; None where it has no such metric."""

    def values(self, sums: Mapping[str, float], num_rows: int) -> Mapping[str, float]:
        """The metrics by name, from the sums over all ranks."""


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

    def metric(self) -> Metric | None:
        """What is measured where the function gives Trainer no compute_metrics; None: the loss alone.

        It may depend on what ``rows`` has returned; where the function has not asked for rows, it has none.
        """

    def pipeline(self) -> Mapping[str, Any]:
        """``task`` and other options of transformers.pipeline by which the published model is used, plain JSON.

        Empty where there is none for it.
        """

    def card(self, labels: tuple[str, ...]) -> str:
        """What the model is, as Markdown, for the card that is published with it.

        Front matter before it is added to that of every card, such as ``library_name: peft``.
        """


@runtime_checkable
class Classifies(Protocol):
    """A worker half that tells also how its published model is asked for the classes of rows."""

    @property
    def has_one_class(self) -> bool:
        """Whether each row has one class out of ``Rows.labels``, its number in the column ``label``."""

    def rows(self) -> Rows:
        """As of WorkerTask."""

    def classes(self, use: Any, rows: "Dataset") -> list[str]:
        """The name of the class that the pipeline of the published model gives to each row."""


@runtime_checkable
class NotesModel(Protocol):
    """A worker half that has also something to tell of the model that it has loaded."""

    model_notes: Sequence[str]
    """What a person should know of the model that ``load`` has returned last."""


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
    """The rows of a run's task, to look at: ``train`` and ``held_out``, divided as every attempt divides them.

    Raises:
        InvalidInput: as ``submit``, for the data of the run.
        StorageFailed: the store is away or denies.
    """
    return worker_half(run, None, machine_cache(os.environ)).rows()
