"""Tasks: what kind of training a Run asks for, and what is trained on what. A task is plain data.

Its worker half, named in it, does the work. The bases have what several tasks share, and judge it: RowsTask has rows
and a model, TextTask texts. A task of this package is registered in TASKS.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, ClassVar

from train_func.errors import InvalidInput
from train_func.fields import (
    NamedFields,
    brief,
    field_faults,
    flag_fault,
    is_number,
    json_fault,
    text_fault,
    whole,
    whole_fault,
)
from train_func.inputs import DATA_SUFFIXES
from train_func.plain import plain
from train_func.tables import is_table, saved

if TYPE_CHECKING:
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
    """The fields of ``inputs`` that may name a split of the data set, which comes before a file of that name."""
    tables: ClassVar[tuple[str, ...]] = ()
    """Fields that may hold a table."""

    def __post_init__(self) -> None:
        unsaved: list[str] = []
        for name in (f.name for f in fields(self)):
            value = getattr(self, name)
            try:
                stored = saved(value, name) if name in self.tables and is_table(value) else plain(value)
            except InvalidInput as refused:
                unsaved += refused.faults
                stored = "a table that cannot be saved"
            object.__setattr__(self, name, tuple(stored) if isinstance(stored, list) else stored)
        object.__setattr__(self, "_unsaved", unsaved)

    @property
    def kind(self) -> str:
        """Returns ``module:Class``, the name of the task in records."""
        return f"{type(self).__module__}:{type(self).__qualname__}"

    @property
    def modules(self) -> tuple[str, str]:
        """Returns the modules of the task and of its worker half, which travel with the function if they are local."""
        return type(self).__module__, self.worker.partition(":")[0]

    def all_faults(self) -> list[str]:
        """Returns all faults of the task."""
        unsaved: list[str] = getattr(self, "_unsaved", [])
        faults = [*unsaved, *field_faults(self), *filter(None, self.faults())]
        faults = faults or [fault for name, value in self.to_dict().items() if (fault := json_fault(name, name, value))]
        if self.kind.startswith("__main__:"):
            faults.insert(0, f"{self.kind}: workers import a task by its module; move it from the cell to a file")
        return faults

    def faults(self) -> Iterable[str | None]:
        """Returns the faults of the fields besides those that their judges find; a None among them is ignored."""
        return ()

    def identity(self, fingerprints: Mapping[str, str]) -> dict[str, Any]:
        """Returns what decides the result besides the content of the inputs, which have ``fingerprints``.

        A field with its default is left out, so that a task may get further fields and its runs keep their names.
        """
        by_content = {*fingerprints, *(f"{name}_revision" for name in fingerprints)}
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in by_content}
        default = {f.name: f.default for f in fields(self)}
        # The ending of a file of rows decides how its bytes are read; a folder or a Hub id may have a dot as well.
        suffixes = {name: PurePath(str(getattr(self, name, ""))).suffix.lower() for name in fingerprints}
        endings = {f"{name} ends in": suffix if suffix in DATA_SUFFIXES else "" for name, suffix in suffixes.items()}
        return {KIND: self.kind, **endings, **{name: value for name, value in values.items() if value != default[name]}}

    def to_dict(self) -> dict[str, Any]:
        """Returns plain JSON values; ``from_dict`` is its inverse."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {KIND: self.kind, **{name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Task:
        """Returns the task of ``values``; one of another package stays a StoredTask until it is loaded.

        Raises:
            InvalidInput: no kind is named, or a field is unknown.
        """
        if not isinstance(values.get(KIND), str):
            raise InvalidInput(f"task={dict(values)!r}: a task is expected, or what its to_dict() returned")
        stored = StoredTask(named=values[KIND], held={name: value for name, value in values.items() if name != KIND})
        return stored.load() if stored.named.startswith(f"{__package__}.") else stored

    def load(self) -> Task:
        """Returns the task itself."""
        return self


@dataclass(frozen=True, kw_only=True)
class StoredTask(Task):
    """A task from a record, whose class is not imported, because a client does not need it to find a run."""

    named: str
    held: Mapping[str, Any]

    @property
    def kind(self) -> str:
        return self.named

    def to_dict(self) -> dict[str, Any]:
        return {KIND: self.named, **self.held}

    def load(self) -> Task:
        """Returns the task as an object of its own class.

        Raises:
            InvalidInput: there is no such class here, or it does not accept the fields.
        """
        module, _, name = self.named.partition(":")
        try:
            kind = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise InvalidInput(
                f"the task {self.named} cannot be imported here: {error}; its module travels with the function, or "
                "is installed in the image",
                cause="source",
            ) from error
        if not (isinstance(kind, type) and issubclass(kind, Task)):
            raise InvalidInput(f"{self.named} is no task: a subclass of {Task.__module__}.Task is expected")
        return kind(**self.held)


SINGLE, SEVERAL, REGRESSION = "single_label_classification", "multi_label_classification", "regression"
PROBLEM_TYPES = (SINGLE, SEVERAL, REGRESSION)
_DATASET = (
    "a non-empty text or a Path is expected (a file, a folder, a Hub id, an address), a pandas DataFrame or a "
    "datasets.Dataset"
)


def _held_out_fault(name: str, share: object) -> str | None:
    if isinstance(share, str):
        return text_fault(name, share)
    if is_number(share) and 0 < share < 1:
        return None
    return f"{name}={brief(share)}: a share between 0 and 1, the name of a split, a file or a table is expected"


def _class_names_fault(name: str, value: object) -> str | None:
    """Returns the fault of class names; at least two different texts, or none, are expected."""
    if not isinstance(value, tuple) or not all(isinstance(text, str) and text for text in value):
        return f"{name}={brief(value)}: a tuple of class names is expected, such as ('negative', 'positive')"
    if len(set(value)) != len(value):
        return f"{name}={value!r}: each class name may occur only once"
    if len(value) == 1:
        return f"{name}={value!r}: one class leaves nothing to learn; name at least two"
    return None


@dataclass(frozen=True, kw_only=True)
class RowsTask(Task):
    """Base of tasks with rows, some of which are held out, and a model of transformers, where ``model`` names one."""

    inputs: ClassVar[tuple[str, ...]] = ("model", "dataset", "held_out")
    splits: ClassVar[tuple[str, ...]] = ("held_out",)
    tables: ClassVar[tuple[str, ...]] = ("dataset", "held_out")
    not_of_rows: ClassVar[tuple[str, ...]] = ("model", "model_revision")
    """Fields that do not decide which rows there are, how they are judged and how they are divided."""

    model: str | None = field(metadata={"judge": text_fault})
    """Hub id, folder, store address, or ``package://NAME/FOLDER`` inside an installed package."""
    model_revision: str = field(default="main", metadata={"judge": text_fault})
    """Branch, tag or commit of a Hub model."""
    dataset: str | DataFrame | Dataset = field(metadata={"judge": partial(text_fault, expected=_DATASET)})
    """Hub id, csv/tsv/json/jsonl/parquet file, saved ``datasets`` folder, store address, DataFrame or Dataset."""
    dataset_revision: str = field(default="main", metadata={"judge": text_fault})
    """Branch, tag or commit of a Hub dataset."""
    subset: str | None = field(default=None, metadata={"judge": text_fault})
    """Configuration of a Hub dataset that has several."""
    held_out: float | str | DataFrame | Dataset = field(default=0.2, metadata={"judge": _held_out_fault})
    """Share of the rows kept for evaluation, the name of a split, or a file, folder, DataFrame or Dataset."""
    samples: int | None = field(default=None, metadata={"judge": whole(2, 10**12)})
    """Number of rows to use, drawn with the seed; None: all."""

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        """Returns the columns that are read, each after the field that names it."""
        raise NotImplementedError

    def faults(self) -> Iterator[str | None]:
        for number, (key, name) in enumerate(self.columns):
            is_one_of_several = isinstance(getattr(self, key), tuple)
            yield None if is_one_of_several else text_fault(key, name)
            for other, same in self.columns[:number]:
                if key != other and isinstance(name, str) and name == same:
                    yield f"{other} and {key} are both {name!r}: two different columns are expected"


@dataclass(frozen=True, kw_only=True)
class TextTask(RowsTask):
    """Base of tasks with a model of texts."""

    not_of_rows: ClassVar[tuple[str, ...]] = (*RowsTask.not_of_rows, "max_length")

    model: str = field(metadata={"judge": text_fault})
    """Hub id, folder, store address, or ``package://NAME/FOLDER`` inside an installed package."""
    max_length: int = field(default=512, metadata={"judge": whole(4, 1_000_000)})
    """Tokens after which a text is cut; what stands behind them is not trained on."""


@dataclass(frozen=True, kw_only=True)
class TextClassification(TextTask):
    """Every text, or pair of texts, has one class, several labels or a number, as ``problem_type`` says."""

    worker: ClassVar[str] = "train_func.worker.tasks.text_classification:TextClassifier"

    text: str = "text"
    """Column with the text."""
    text_pair: str | None = None
    """Column with a second text, where the model classifies pairs; the longer text of a pair is cut first."""
    label: str | tuple[str, ...] = "label"
    """Column with the class, the labels (a list, or a text with | between) or the number; or columns of 0 and 1."""
    problem_type: str = SINGLE
    """``"single_label_classification"``, ``"multi_label_classification"`` (several per row) or ``"regression"``."""
    labels: tuple[str, ...] = field(default=(), metadata={"judge": _class_names_fault})
    """Names of the classes, in the order of the integer labels 0, 1, ...; empty: the values themselves."""

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        pair = (("text_pair", self.text_pair),) if self.text_pair is not None else ()
        return (("text", self.text), *pair, *(("label", name) for name in self.label_columns))

    @property
    def label_columns(self) -> tuple[str, ...]:
        """Returns the names of the columns with the targets."""
        return self.label if isinstance(self.label, tuple) else (self.label,)

    def faults(self) -> Iterator[str | None]:
        yield from super().faults()
        if self.problem_type not in PROBLEM_TYPES:
            expected = ", ".join(map(repr, PROBLEM_TYPES))
            yield f"problem_type={brief(self.problem_type)}: one of {expected} is expected"
        if isinstance(self.label, tuple):
            is_text = all(isinstance(column, str) and column.strip() for column in self.label)
            if not is_text or len(self.label) < 2 or len(set(self.label)) != len(self.label):
                two = "at least two different columns are expected, such as ('toxic', 'insult')"
                yield f"label={brief(self.label)}: {two}"
            if self.problem_type != SEVERAL:
                yield (
                    f"label={brief(self.label)}: several columns are for several labels per row; name one "
                    f"column, or give problem_type={SEVERAL!r}"
                )
            if self.labels:
                yield f"labels={brief(self.labels)}: the columns of label= name the labels; leave labels out"
        if self.problem_type == REGRESSION and self.labels:
            yield f"labels={brief(self.labels)}: a number has no class names; leave labels out"


@dataclass(frozen=True, kw_only=True)
class TokenClassification(TextTask):
    """Every word of a sentence has a tag, such as the kind of name that it is part of.

    The first token of a word has its tag. Metrics are ``accuracy`` over tagged words and, for tags such as ``B-PER``,
    ``precision``, ``recall`` and ``f1`` of spans, as seqeval counts them. BIOES, BILOU, BMES and tags without a type
    are written as BIO first. Words behind ``max_length`` are neither trained on nor measured.
    """

    worker: ClassVar[str] = "train_func.worker.tasks.token_classification:TokenClassifier"

    dataset: str | DataFrame | Dataset = field(metadata={"judge": partial(text_fault, expected=_DATASET)})
    """Hub id, conll/json/jsonl/parquet file, saved ``datasets`` folder, store address, DataFrame or Dataset."""
    tokens: str = "tokens"
    """Column with the words of each sentence, a list of texts."""
    tags: str = "tags"
    """Column with the tag of each word, a list of texts or integers."""
    labels: tuple[str, ...] = field(default=(), metadata={"judge": _class_names_fault})
    """Names of the tags, in the order of the integer tags 0, 1, ...; empty: the values themselves."""

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        return ("tokens", self.tokens), ("tags", self.tags)


@dataclass(frozen=True, kw_only=True)
class CausalLM(TextTask):
    """A language model is tuned on conversations, or on prompts and the answers to them; the loss is of answers only.

    With ``lora_rank`` small adapters beside its linear layers are trained and published, and its own weights stay as
    they are; without it all of its weights are trained, in float32. Adapters that begin as ``"pissa"``, ``"olora"`` or
    ``"corda"`` are published at twice their rank.

    The model's chat template makes the text; a tokenizer without one gets a plain one, published with it. A template
    that rewrites earlier answers, as that of Qwen3, takes one question and one answer; one that begins an answer with a
    thought, as that of DeepSeek-R1, takes none. A date in the template stays that of the first day.

    Metrics are ``loss``, ``perplexity`` and ``token_accuracy`` over the tokens of answers; ``loss`` alone for a model
    that scales or caps its logits or adds to its loss, such as granite, gemma2 and mixtral with
    ``output_router_logits``. ``compute_metrics`` and ``trainer.predict`` get three numbers for each row and no logits:
    summed loss, tokens, right tokens. A forward with labels and gradients returns ``logits=None``.
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
    """Column with conversations in place of the three: lists of {"role": "user", "content": "..."}.

    An answer with ``"weight": 0`` is only read.
    """
    lora_rank: int | None = field(default=None, metadata={"judge": whole(1, 1024)})
    """Rank of the adapters; None trains all weights."""
    lora_alpha: int | None = field(default=None, metadata={"judge": whole(1, 10_000)})
    """Adapters count ``lora_alpha / lora_rank`` times; None for twice the rank."""
    lora_dropout: float = 0.0
    """Share of an adapter's inputs that a training step leaves out."""
    lora_layers: tuple[str, ...] = ()
    """Names of the layers that get adapters, such as ``("q_proj", "v_proj")``; empty: every linear one but the last."""
    max_length: int = field(default=1024, metadata={"judge": whole(4, 1_000_000)})
    """Tokens after which a conversation is cut."""

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        if self.messages is not None:
            return (("messages", self.messages),)
        context = (("context", self.context),) if self.context is not None else ()
        return (("prompt", self.prompt), *context, ("completion", self.completion))

    def faults(self) -> Iterator[str | None]:
        yield from super().faults()
        values = [(f.name, getattr(self, f.name), f.default) for f in fields(self)]
        changed = {name: brief(value) for name, value, default in values if value != default}
        if self.messages is not None:
            for name in ("prompt", "context", "completion"):
                if name in changed:
                    yield (
                        f"{name}={changed[name]}: messages={brief(self.messages)} names the column with whole "
                        "conversations; give one or the other"
                    )
        if self.lora_rank is None:
            for name in ("lora_alpha", "lora_dropout", "lora_layers"):
                if name in changed:
                    yield f"{name}={changed[name]}: without lora_rank there are no adapters"
            return
        if not is_number(self.lora_dropout) or not 0 <= self.lora_dropout < 1:
            yield f"lora_dropout={brief(self.lora_dropout)}: a number of at least 0 and below 1 is expected"
        layers = self.lora_layers
        if not isinstance(layers, tuple) or not all(isinstance(name, str) and name for name in layers):
            yield f"lora_layers={brief(layers)}: a tuple of names is expected, such as ('q_proj', 'v_proj')"


@dataclass(frozen=True, kw_only=True)
class ImageClassification(RowsTask):
    """Every image has one class. The metric is ``accuracy``.

    Each image is decoded once at the submission, to RGB, upright, white where it is transparent; of several frames the
    first counts. More than 50 million pixels, or 8 bits per colour, are refused.
    """

    worker: ClassVar[str] = "train_func.worker.tasks.image_classification:ImageClassifier"

    model: str | None
    """Hub id, folder, store or package address; None: the function makes a module of its own."""
    dataset: str | DataFrame | Dataset = field(metadata={"judge": partial(text_fault, expected=_DATASET)})
    """Folder with a folder per class, parquet file, Hub id, saved ``datasets`` folder, store address or Dataset."""
    image: str = "image"
    """Column with the images as they are in their files: bytes, or what ``datasets`` calls Image."""
    label: str = "label"
    """Column with the class; in a folder with a folder per class it is called label."""
    labels: tuple[str, ...] = field(default=(), metadata={"judge": _class_names_fault})
    """Names of the classes, in the order of the integer labels 0, 1, ...; empty: the values themselves."""
    size: int | None = None
    """Height and width of what a module of the function's own is given; those of a ``model`` are its own."""
    augment: bool = field(default=True, metadata={"judge": flag_fault})
    """Train on random parts of the images, of at least 35 %, half of them mirrored, the same on any number of workers.

    False, as for letters: train on what held-out images are measured by.
    """

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        return ("image", self.image), ("label", self.label)

    def faults(self) -> Iterator[str | None]:
        yield from super().faults()
        if self.model is None:
            yield whole_fault("size", self.size, 8, 4096)
            if self.model_revision != "main":
                yield f"model_revision={brief(self.model_revision)}: there is no model; leave it out"
        else:
            yield text_fault("model", self.model)
            if self.size is not None:
                yield f"size={brief(self.size)}: model={brief(self.model)} has its own; leave size out"


TASKS: tuple[type[Task], ...] = (TextClassification, TokenClassification, CausalLM, ImageClassification)
