"""Tasks: what kind of training a Run asks for, and what is trained on what. A task is plain data.

Its worker half, named in it, does the work. The bases have what several tasks share, and judge it: HubModelTask has a
model, RowsTask rows beside it, TextTask texts. A task of this package is registered in TASKS.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, ClassVar

from train_func.errors import InvalidInput
from train_func.fields import (
    NamedFields,
    brief,
    column_names_fault,
    flag_fault,
    json_fault,
    names_fault,
    text_fault,
    whole_fault,
)
from train_func.plain import plain
from train_func.tables import is_table, saved

if TYPE_CHECKING:
    from collections.abc import Iterable

    from datasets import Dataset
    from pandas import DataFrame


KIND = "kind"  # beside the fields of a task, where it is plain JSON


@dataclass(frozen=True, kw_only=True)
class Task(NamedFields):
    """Base of all tasks. A subclass is a frozen dataclass with keyword-only fields, in a module that can be imported.

    A task is checked with its Run, so that the faults of both are reported at once. A Path and numpy's numbers become
    plain values, a list a tuple; a pandas DataFrame or a datasets.Dataset is saved by content and named by its file.
    """

    worker: ClassVar[str]
    """``module:Class`` of the worker half."""
    inputs: ClassVar[tuple[str, ...]] = ()
    """Fields that may name a file, a folder, an address or a Hub id; the name of a run begins with the first two."""
    splits: ClassVar[tuple[str, ...]] = ()
    """Those of ``inputs`` that may name a split of the data set, which comes before a file of that name."""
    tables: ClassVar[tuple[str, ...]] = ()
    """Fields that may hold a table."""

    def __post_init__(self) -> None:
        unsaved: dict[str, list[str]] = {}
        for name in (own.name for own in fields(self)):
            value = getattr(self, name)
            try:
                held = saved(value, name) if name in self.tables and is_table(value) else plain(value)
            except InvalidInput as refused:
                unsaved[name] = list(refused.faults)
            else:
                object.__setattr__(self, name, tuple(held) if isinstance(held, list) else held)
        object.__setattr__(self, "_unsaved", unsaved)

    @property
    def kind(self) -> str:
        """``module:Class``, by which a record names it."""
        return f"{type(self).__module__}:{type(self).__qualname__}"

    @property
    def modules(self) -> tuple[str, str]:
        """The modules of the task and of its worker half, which travel with the function where they are local."""
        return type(self).__module__, self.worker.partition(":")[0]

    def all_faults(self) -> list[str]:
        """Everything that keeps the task from being valid."""
        unsaved: dict[str, list[str]] = getattr(self, "_unsaved", {})
        found = [*(fault for told in unsaved.values() for fault in told), *self.faults(frozenset(unsaved))]
        if self.kind.startswith("__main__:"):
            found.append(f"{type(self).__name__}: workers import a task by its module; move it from the cell to a file")
        told = {*unsaved, *(re.split("[=:]", fault)[0] for fault in found)}
        values = {name: value for name, value in self.to_dict().items() if name not in told}
        return found + [fault for name, value in values.items() if (fault := json_fault(name, name, value))]

    def faults(self, unsaved: frozenset[str]) -> list[str]:
        """What is wrong with the fields, those in ``unsaved`` left out: why their tables cannot be saved is told."""
        return []

    def identity(self, fingerprints: Mapping[str, str]) -> dict[str, Any]:
        """What of the task decides the result, beside the inputs, which are known by their ``fingerprints``.

        A field with its default is left out, so that a task may get further fields and its runs keep their names.
        """
        by_content = {*fingerprints, *(f"{name}_revision" for name in fingerprints)}
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in by_content}
        default = {f.name: f.default for f in fields(self)}
        # The ending of a file decides how its bytes are read.
        endings = {f"{name} ends in": PurePath(str(getattr(self, name, ""))).suffix.lower() for name in fingerprints}
        return {KIND: self.kind, **endings, **{name: value for name, value in own.items() if value != default[name]}}

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; ``from_dict`` is its inverse."""
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        return {KIND: self.kind, **{name: list(v) if isinstance(v, tuple) else v for name, v in own.items()}}

    @staticmethod
    def from_dict(given: Mapping[str, Any]) -> Task:
        """The task in ``given``; one of another package stays StoredTask until it is loaded.

        Raises:
            InvalidInput: no kind is named, or a field is unknown.
        """
        if not isinstance(given.get(KIND), str):
            raise InvalidInput(f"task={dict(given)!r}: a task is expected, or what its to_dict() returned")
        stored = StoredTask(named=given[KIND], held={name: value for name, value in given.items() if name != KIND})
        return stored.load() if stored.named.startswith(f"{__package__}.") else stored

    def load(self) -> Task:
        """The task itself."""
        return self


@dataclass(frozen=True, kw_only=True)
class StoredTask(Task):
    """A task out of a record, whose class is not imported: a client needs none of it to find a run again."""

    named: str
    held: Mapping[str, Any]

    @property
    def kind(self) -> str:
        return self.named

    def faults(self, unsaved: frozenset[str]) -> list[str]:
        return []

    def to_dict(self) -> dict[str, Any]:
        return {KIND: self.named, **self.held}

    def load(self) -> Task:
        """The task, of its own class.

        Raises:
            InvalidInput: there is no such class here, or it does not accept the fields.
        """
        module, _, name = self.named.partition(":")
        try:
            found = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise InvalidInput(
                f"the task {self.named} cannot be imported here: {error}; its module travels with the function, or "
                "is installed in the image",
                cause="source",
            ) from error
        if not (isinstance(found, type) and issubclass(found, Task)):
            raise InvalidInput(f"{self.named} is no task: a subclass of {Task.__module__}.Task is expected")
        return found(**self.held)


SINGLE, SEVERAL, REGRESSION = "single_label_classification", "multi_label_classification", "regression"
PROBLEM_TYPES = (SINGLE, SEVERAL, REGRESSION)
_DATASET = (
    "a non-empty text or a Path is expected (a file, a folder, a Hub id, an address), a pandas DataFrame or a "
    "datasets.Dataset"
)


@dataclass(frozen=True, kw_only=True)
class HubModelTask(Task):
    """Base of tasks that begin with a model of transformers, where ``model`` names one."""

    model: str | None
    """Hub id, folder, store address, or ``package://NAME/FOLDER`` inside an installed package."""
    model_revision: str = "main"
    """Branch, tag or commit of a Hub model."""

    def faults(self, unsaved: frozenset[str]) -> list[str]:
        own = [text_fault("model_revision", self.model_revision)]
        if self.model is not None:
            own.append(text_fault("model", self.model))
        elif self.model_revision != "main":
            own.append(f"model_revision={brief(self.model_revision)}: there is no model; leave it out")
        return [*super().faults(unsaved), *_told(own)]


@dataclass(frozen=True, kw_only=True)
class RowsTask(HubModelTask):
    """Base of tasks with rows, some of which are held out, and a model or a module of the function's own."""

    inputs: ClassVar[tuple[str, ...]] = ("model", "dataset", "held_out")
    splits: ClassVar[tuple[str, ...]] = ("held_out",)
    tables: ClassVar[tuple[str, ...]] = ("dataset", "held_out")
    not_of_rows: ClassVar[tuple[str, ...]] = ("model", "model_revision")
    """Fields that do not decide which rows there are, how they are judged and how they are divided."""

    dataset: str | DataFrame | Dataset
    """Hub id, csv/tsv/json/jsonl/parquet file, saved ``datasets`` folder, store address, DataFrame or Dataset."""
    dataset_revision: str = "main"
    """Branch, tag or commit of a Hub dataset."""
    subset: str | None = None
    """Configuration of a Hub dataset that has several."""
    held_out: float | str | DataFrame | Dataset = 0.2
    """Share of the rows kept for evaluation, the name of a split, or a file, DataFrame or Dataset."""
    samples: int | None = None
    """Use only so many rows, drawn with the seed."""

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        """The columns that are read, each behind the field that names it."""
        raise NotImplementedError

    def faults(self, unsaved: frozenset[str]) -> list[str]:
        own = [
            text_fault("dataset", self.dataset, _DATASET) if "dataset" not in unsaved else None,
            text_fault("dataset_revision", self.dataset_revision),
            text_fault("subset", self.subset) if self.subset is not None else None,
            _held_out_fault(self.held_out) if "held_out" not in unsaved else None,
            whole_fault("samples", self.samples, 2, 10**12) if self.samples is not None else None,
        ]
        for number, (field, name) in enumerate(self.columns):
            is_one_of_several = isinstance(getattr(self, field), tuple)
            own.append(None if is_one_of_several else text_fault(field, name))
            own += [
                f"{other} and {field} are both {name!r}: two different columns are expected"
                for other, same in self.columns[:number]
                if field != other and isinstance(name, str) and name == same
            ]
        return [*super().faults(unsaved), *_told(own)]


def _held_out_fault(share: object) -> str | None:
    if isinstance(share, str):
        return text_fault("held_out", share)
    if isinstance(share, (int, float)) and not isinstance(share, bool) and 0 < share < 1:
        return None
    return f"held_out={brief(share)}: a share between 0 and 1, the name of a split, a file or a table is expected"


def _told(faults: Iterable[str | None]) -> list[str]:
    return [fault for fault in faults if fault]


@dataclass(frozen=True, kw_only=True)
class TextTask(RowsTask):
    """Base of tasks with a model of texts."""

    not_of_rows: ClassVar[tuple[str, ...]] = (*RowsTask.not_of_rows, "max_length")

    model: str
    """Hub id, folder, store address, or ``package://NAME/FOLDER`` inside an installed package."""
    max_length: int = 512
    """Tokens after which a text is cut."""

    def faults(self, unsaved: frozenset[str]) -> list[str]:
        own = [whole_fault("max_length", self.max_length, 4, 1_000_000)]
        own += [text_fault("model", self.model)] if self.model is None else []
        return [*super().faults(unsaved), *_told(own)]


@dataclass(frozen=True, kw_only=True)
class TextClassification(TextTask):
    """Every text, or pair of texts, has one class, several labels or a number, as ``problem_type`` says.

    The fields are checked with those of the Run, all at once.
    """

    worker: ClassVar[str] = "train_func.worker.tasks.text_classification:TextClassifier"

    text: str = "text"
    """Column with the text."""
    text_pair: str | None = None
    """Column with a second text, where the model classifies pairs; the longer text of a pair is cut first."""
    label: str | tuple[str, ...] = "label"
    """Column with the class, the labels (a list, or a text with | between) or the number; or columns of 0 and 1."""
    problem_type: str = SINGLE
    """``"single_label_classification"``, ``"multi_label_classification"`` (several per row) or ``"regression"``."""
    labels: tuple[str, ...] = ()
    """Names of the classes, in the order of the integer labels 0, 1, ...; empty: the values themselves."""

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        pair = (("text_pair", self.text_pair),) if self.text_pair is not None else ()
        return (("text", self.text), *pair, *(("label", name) for name in self.label_columns))

    @property
    def label_columns(self) -> tuple[str, ...]:
        """The names of the columns with what is to be predicted."""
        return self.label if isinstance(self.label, tuple) else (self.label,)

    def faults(self, unsaved: frozenset[str]) -> list[str]:
        own = [_class_names_fault(self.labels)]
        if self.problem_type not in PROBLEM_TYPES:
            expected = ", ".join(map(repr, PROBLEM_TYPES))
            own.append(f"problem_type={brief(self.problem_type)}: one of {expected} is expected")
        if isinstance(self.label, tuple):
            own.append(column_names_fault("label", self.label))
            if self.problem_type != SEVERAL:
                own.append(
                    f"label={brief(self.label)}: only several labels per row stand in several columns; name one "
                    f"column, or give problem_type={SEVERAL!r}"
                )
            if self.labels:
                own.append(f"labels={brief(self.labels)}: the columns of label= name the labels; leave labels out")
        if self.problem_type == REGRESSION and self.labels:
            own.append(f"labels={brief(self.labels)}: a number has no class names; leave labels out")
        return [*super().faults(unsaved), *_told(own)]


def _class_names_fault(names: object) -> str | None:
    return names_fault("labels", names, "('negative', 'positive')")


@dataclass(frozen=True, kw_only=True)
class TokenClassification(TextTask):
    """Every word of a sentence has a tag, such as the kind of name that it is part of.

    The fields are checked with those of the Run, all at once.
    """

    worker: ClassVar[str] = "train_func.worker.tasks.token_classification:TokenClassifier"

    dataset: str | DataFrame | Dataset
    """Hub id, conll/json/jsonl/parquet file, saved ``datasets`` folder, store address, DataFrame or Dataset."""
    tokens: str = "tokens"
    """Column with the words of each sentence, a list of texts."""
    tags: str = "tags"
    """Column with the tag of each word, a list of texts or integers."""
    labels: tuple[str, ...] = ()
    """Names of the tags, in the order of the integer tags 0, 1, ...; empty: the values themselves."""
    max_length: int = 512
    """Tokens after which a sentence is cut; words behind them are not trained on."""

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        return ("tokens", self.tokens), ("tags", self.tags)

    def faults(self, unsaved: frozenset[str]) -> list[str]:
        return [*super().faults(unsaved), *_told([_class_names_fault(self.labels)])]


@dataclass(frozen=True, kw_only=True)
class CausalLM(TextTask):
    """A language model is tuned on conversations, or on prompts and the answers to them; the loss is of answers only.

    With ``lora_rank`` small adapters beside its linear layers are trained and published, and its own weights stay as
    they are; without it all of its weights are trained. The fields are checked with those of the Run, all at once.
    """

    worker: ClassVar[str] = "train_func.worker.tasks.causal_lm:CausalLMTuner"
    not_of_rows: ClassVar[tuple[str, ...]] = (
        *TextTask.not_of_rows,
        *("lora_rank", "lora_alpha", "lora_dropout", "lora_layers"),
    )

    prompt: str = "prompt"
    """Column with what is asked."""
    context: str | None = None
    """Column with a text that the prompt is about, which may be empty; it is put behind the prompt."""
    completion: str = "completion"
    """Column with the answer."""
    messages: str | None = None
    """Column with conversations in place of the three: lists of {"role": "user", "content": "..."}."""
    lora_rank: int | None = None
    """Rank of the adapters; None trains all weights."""
    lora_alpha: int | None = None
    """Adapters count ``lora_alpha / lora_rank`` times; None for twice the rank."""
    lora_dropout: float = 0.0
    """Share of an adapter's inputs that a training step leaves out."""
    lora_layers: tuple[str, ...] = ()
    """Names of the layers that get adapters, such as ``("q_proj", "v_proj")``; empty: every linear one but the last."""
    max_length: int = 1024
    """Tokens after which a conversation is cut."""

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        if self.messages is not None:
            return (("messages", self.messages),)
        context = (("context", self.context),) if self.context is not None else ()
        return (("prompt", self.prompt), *context, ("completion", self.completion))

    def faults(self, unsaved: frozenset[str]) -> list[str]:
        own = _adapter_faults(self)
        if self.messages is not None:
            own += [
                f"{name}={brief(getattr(self, name))}: messages={brief(self.messages)} names the column with whole "
                f"conversations; give one or the other"
                for name in _changed(self, "prompt", "context", "completion")
            ]
        return [*super().faults(unsaved), *_told(own)]


def _adapter_faults(task: CausalLM) -> list[str | None]:
    dropout, layers = task.lora_dropout, task.lora_layers
    if task.lora_rank is None:
        names = _changed(task, "lora_alpha", "lora_dropout", "lora_layers")
        return [f"{name}={brief(getattr(task, name))}: without lora_rank there are no adapters" for name in names]
    faults = [whole_fault("lora_rank", task.lora_rank, 1, 1024)]
    faults.append(whole_fault("lora_alpha", task.lora_alpha, 1, 10_000) if task.lora_alpha is not None else None)
    if isinstance(dropout, bool) or not isinstance(dropout, (int, float)) or not 0 <= dropout < 1:
        faults.append(f"lora_dropout={brief(dropout)}: a number of at least 0 and below 1 is expected")
    if not isinstance(layers, tuple) or not all(isinstance(name, str) and name for name in layers):
        faults.append(f"lora_layers={brief(layers)}: a tuple of names is expected, such as ('q_proj', 'v_proj')")
    return faults


def _changed(task: CausalLM, *names: str) -> list[str]:
    """The fields among ``names`` that differ from their defaults."""
    default = {field.name: field.default for field in fields(task)}
    return [name for name in names if getattr(task, name) != default[name]]


@dataclass(frozen=True, kw_only=True)
class ImageClassification(RowsTask):
    """Every image has one class.

    The fields are checked with those of the Run, all at once.
    """

    worker: ClassVar[str] = "train_func.worker.tasks.image_classification:ImageClassifier"

    model: str | None
    """Hub id, folder, store or package address; None: the function makes a module of its own."""
    dataset: str | DataFrame | Dataset
    """Folder with a folder per class, parquet file, Hub id, saved ``datasets`` folder, store address or Dataset."""
    image: str = "image"
    """Column with the images as they are in their files: bytes, or what ``datasets`` calls Image."""
    label: str = "label"
    """Column with the class; in a folder with a folder per class it is called label."""
    labels: tuple[str, ...] = ()
    """Names of the classes, in the order of the integer labels 0, 1, ...; empty: the values themselves."""
    held_out: float | str | DataFrame | Dataset = 0.2
    """Share of the rows kept for evaluation, the name of a split, or a file, folder, DataFrame or Dataset."""
    size: int | None = None
    """Height and width of what a module of the function's own is given; those of a ``model`` are its own."""
    augment: bool = True
    """Train on random parts of the images, half of them mirrored; False: on what held-out images are measured by."""

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        return ("image", self.image), ("label", self.label)

    def faults(self, unsaved: frozenset[str]) -> list[str]:
        own = [_class_names_fault(self.labels), flag_fault("augment", self.augment)]
        if self.model is None:
            own.append(whole_fault("size", self.size, 8, 4096))
        elif self.size is not None:
            own.append(f"size={brief(self.size)}: model={brief(self.model)} has its own; leave size out")
        return [*super().faults(unsaved), *_told(own)]


TASKS: tuple[type[Task], ...] = (TextClassification, TokenClassification, CausalLM, ImageClassification)
