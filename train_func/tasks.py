"""The tasks of this package: each says what is trained on what, and is registered in TASKS."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar

from train_func.task import Task
from train_func.task_faults import row_faults, same_column_faults, shared_faults
from train_func.validity import brief, column_names_fault, flag_fault, text_fault, whole_fault

if TYPE_CHECKING:
    from datasets import Dataset
    from pandas import DataFrame

SINGLE, SEVERAL, REGRESSION = "single_label_classification", "multi_label_classification", "regression"
PROBLEM_TYPES = (SINGLE, SEVERAL, REGRESSION)


@dataclass(frozen=True, kw_only=True)
class TextClassification(Task):
    """Every text, or pair of texts, has one class, several labels or a number, as ``problem_type`` says.

    The fields are checked with those of the Run, all at once.
    """

    worker: ClassVar[str] = "train_func.worker.tasks.text_classification:TextClassifier"
    inputs: ClassVar[tuple[str, ...]] = ("model", "dataset", "held_out")
    splits: ClassVar[tuple[str, ...]] = ("held_out",)
    tables: ClassVar[tuple[str, ...]] = ("dataset", "held_out")

    model: str
    """Hub id, folder, store address, or ``package://NAME/FOLDER`` inside an installed package."""
    dataset: str | DataFrame | Dataset
    """Hub id, csv/tsv/json/jsonl/parquet file, saved ``datasets`` folder, store address, DataFrame or Dataset."""
    model_revision: str = "main"
    """Branch, tag or commit of a Hub model."""
    dataset_revision: str = "main"
    """Branch, tag or commit of a Hub dataset."""
    subset: str | None = None
    """Configuration of a Hub dataset that has several."""
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
    held_out: float | str | DataFrame | Dataset = 0.2
    """Share of the rows kept for evaluation, the name of a split, or a file, DataFrame or Dataset."""
    samples: int | None = None
    """Use only so many rows, drawn with the seed."""
    max_length: int = 512
    """Tokens after which a text is cut."""

    def faults(self, unsaved: frozenset[str]) -> list[str]:
        """What is wrong with the fields."""
        found = [*shared_faults(self, unsaved), text_fault("text", self.text), *_label_faults(self)]
        if self.text_pair is not None:
            found.append(text_fault("text_pair", self.text_pair))
        if self.problem_type not in PROBLEM_TYPES:
            expected = ", ".join(map(repr, PROBLEM_TYPES))
            found.append(f"problem_type={brief(self.problem_type)}: one of {expected} is expected")
        labels = self.label if isinstance(self.label, tuple) else (self.label,)
        columns = [("text", self.text), ("text_pair", self.text_pair), *(("label", name) for name in labels)]
        for number, (field, name) in enumerate(columns):
            for other, same in columns[:number]:
                if field != other and isinstance(name, str) and name == same:
                    found.append(f"{other} and {field} are both {name!r}: two different columns are expected")
        return [fault for fault in found if fault]


def _label_faults(task: TextClassification) -> list[str | None]:
    found = []
    if isinstance(task.label, tuple):
        found.append(column_names_fault("label", task.label))
        if task.problem_type != SEVERAL:
            found.append(
                f"label={brief(task.label)}: only several labels per row stand in several columns; name one column, or "
                f"give problem_type={SEVERAL!r}"
            )
        if task.labels:
            found.append(f"labels={brief(task.labels)}: the columns of label= name the labels; leave labels out")
    else:
        found.append(text_fault("label", task.label))
    if task.problem_type == REGRESSION and task.labels:
        found.append(f"labels={brief(task.labels)}: a number has no class names; leave labels out")
    return found


@dataclass(frozen=True, kw_only=True)
class TokenClassification(Task):
    """Every word of a sentence has a tag, such as the kind of name that it is part of.

    The fields are checked with those of the Run, all at once.
    """

    worker: ClassVar[str] = "train_func.worker.tasks.token_classification:TokenClassifier"
    inputs: ClassVar[tuple[str, ...]] = ("model", "dataset", "held_out")
    splits: ClassVar[tuple[str, ...]] = ("held_out",)
    tables: ClassVar[tuple[str, ...]] = ("dataset", "held_out")

    model: str
    """Hub id, folder, store address, or ``package://NAME/FOLDER`` inside an installed package."""
    dataset: str | DataFrame | Dataset
    """Hub id, conll/json/jsonl/parquet file, saved ``datasets`` folder, store address, DataFrame or Dataset."""
    model_revision: str = "main"
    """Branch, tag or commit of a Hub model."""
    dataset_revision: str = "main"
    """Branch, tag or commit of a Hub dataset."""
    subset: str | None = None
    """Configuration of a Hub dataset that has several."""
    tokens: str = "tokens"
    """Column with the words of each sentence, a list of texts."""
    tags: str = "tags"
    """Column with the tag of each word, a list of texts or integers."""
    labels: tuple[str, ...] = ()
    """Names of the tags, in the order of the integer tags 0, 1, ...; empty: the values themselves."""
    held_out: float | str | DataFrame | Dataset = 0.2
    """Share of the rows kept for evaluation, the name of a split, or a file, DataFrame or Dataset."""
    samples: int | None = None
    """Use only so many rows, drawn with the seed."""
    max_length: int = 512
    """Tokens after which a sentence is cut; words behind them are not trained on."""

    def faults(self, unsaved: frozenset[str]) -> list[str]:
        """What is wrong with the fields."""
        found = [*shared_faults(self, unsaved), text_fault("tokens", self.tokens), text_fault("tags", self.tags)]
        if isinstance(self.tokens, str) and self.tokens == self.tags:
            found.append(f"tokens and tags are both {self.tokens!r}: two different columns are expected")
        return [fault for fault in found if fault]


@dataclass(frozen=True, kw_only=True)
class CausalLM(Task):
    """A language model is tuned on conversations, or on prompts and the answers to them; the loss is of answers only.

    With ``lora_rank`` small adapters beside its linear layers are trained and published, and its own weights stay as
    they are; without it all of its weights are trained. The fields are checked with those of the Run, all at once.
    """

    worker: ClassVar[str] = "train_func.worker.tasks.causal_lm:CausalLMTuner"
    inputs: ClassVar[tuple[str, ...]] = ("model", "dataset", "held_out")
    splits: ClassVar[tuple[str, ...]] = ("held_out",)
    tables: ClassVar[tuple[str, ...]] = ("dataset", "held_out")

    model: str
    """Hub id, folder, store address, or ``package://NAME/FOLDER`` inside an installed package."""
    dataset: str | DataFrame | Dataset
    """Hub id, csv/tsv/json/jsonl/parquet file, saved ``datasets`` folder, store address, DataFrame or Dataset."""
    model_revision: str = "main"
    """Branch, tag or commit of a Hub model."""
    dataset_revision: str = "main"
    """Branch, tag or commit of a Hub dataset."""
    subset: str | None = None
    """Configuration of a Hub dataset that has several."""
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
    held_out: float | str | DataFrame | Dataset = 0.2
    """Share of the rows kept for evaluation, the name of a split, or a file, DataFrame or Dataset."""
    samples: int | None = None
    """Use only so many rows, drawn with the seed."""
    max_length: int = 1024
    """Tokens after which a conversation is cut."""

    def faults(self, unsaved: frozenset[str]) -> list[str]:
        """What is wrong with the fields."""
        found = [*shared_faults(self, unsaved), *_adapter_faults(self)]
        default = {f.name: f.default for f in fields(self)}
        if self.messages is None:
            found += [text_fault("prompt", self.prompt), text_fault("completion", self.completion)]
            found.append(text_fault("context", self.context) if self.context is not None else None)
            columns = {"prompt": self.prompt, "context": self.context, "completion": self.completion}
            found += same_column_faults(columns)
        else:
            found.append(text_fault("messages", self.messages))
            given = [name for name in ("prompt", "context", "completion") if getattr(self, name) != default[name]]
            found += [
                f"{name}={brief(getattr(self, name))}: messages={brief(self.messages)} names the column with whole "
                f"conversations; give one or the other"
                for name in given
            ]
        return [fault for fault in found if fault]


def _adapter_faults(task: CausalLM) -> list[str | None]:
    dropout, layers = task.lora_dropout, task.lora_layers
    if task.lora_rank is None:
        default = {f.name: f.default for f in fields(task)}
        given = [name for name in ("lora_alpha", "lora_dropout", "lora_layers") if getattr(task, name) != default[name]]
        return [f"{name}={brief(getattr(task, name))}: without lora_rank there are no adapters" for name in given]
    found = [whole_fault("lora_rank", task.lora_rank, 1, 1024)]
    found.append(whole_fault("lora_alpha", task.lora_alpha, 1, 10_000) if task.lora_alpha is not None else None)
    if isinstance(dropout, bool) or not isinstance(dropout, (int, float)) or not 0 <= dropout < 1:
        found.append(f"lora_dropout={brief(dropout)}: a number of at least 0 and below 1 is expected")
    if not isinstance(layers, tuple) or not all(isinstance(name, str) and name for name in layers):
        found.append(f"lora_layers={brief(layers)}: a tuple of names is expected, such as ('q_proj', 'v_proj')")
    return found


@dataclass(frozen=True, kw_only=True)
class ImageClassification(Task):
    """Every image has one class.

    The fields are checked with those of the Run, all at once.
    """

    worker: ClassVar[str] = "train_func.worker.tasks.image_classification:ImageClassifier"
    inputs: ClassVar[tuple[str, ...]] = ("model", "dataset", "held_out")
    splits: ClassVar[tuple[str, ...]] = ("held_out",)
    tables: ClassVar[tuple[str, ...]] = ("dataset", "held_out")

    model: str | None
    """Hub id, folder, store or package address; None: the function makes a module of its own."""
    dataset: str | DataFrame | Dataset
    """Folder with a folder per class, parquet file, Hub id, saved ``datasets`` folder, store address or Dataset."""
    model_revision: str = "main"
    """Branch, tag or commit of a Hub model."""
    dataset_revision: str = "main"
    """Branch, tag or commit of a Hub dataset."""
    subset: str | None = None
    """Configuration of a Hub dataset that has several."""
    image: str = "image"
    """Column with the images as they are in their files: bytes, or what ``datasets`` calls Image."""
    label: str = "label"
    """Column with the class; in a folder with a folder per class it is called label."""
    labels: tuple[str, ...] = ()
    """Names of the classes, in the order of the integer labels 0, 1, ...; empty: the values themselves."""
    held_out: float | str | DataFrame | Dataset = 0.2
    """Share of the rows kept for evaluation, the name of a split, or a file, folder, DataFrame or Dataset."""
    samples: int | None = None
    """Use only so many rows, drawn with the seed."""
    size: int | None = None
    """Height and width of what a module of the function's own is given; those of a ``model`` are its own."""
    augment: bool = True
    """Train on random parts of the images, half of them mirrored; False: on what held-out images are measured by."""

    def faults(self, unsaved: frozenset[str]) -> list[str]:
        """What is wrong with the fields."""
        found = [text_fault("image", self.image), text_fault("label", self.label), *row_faults(self, unsaved)]
        if isinstance(self.image, str) and self.image == self.label:
            found.append(f"image and label are both {self.image!r}: two different columns are expected")
        if self.model is not None:
            found += [text_fault(name, getattr(self, name)) for name in ("model", "model_revision")]
            if self.size is not None:
                found.append(f"size={brief(self.size)}: model={brief(self.model)} has its own; leave size out")
        else:
            found.append(whole_fault("size", self.size, 8, 4096))
            if self.model_revision != "main":
                found.append(f"model_revision={brief(self.model_revision)}: there is no model; leave it out")
        found.append(flag_fault("augment", self.augment))
        return [fault for fault in found if fault]


TASKS: tuple[type[Task], ...] = (TextClassification, TokenClassification, CausalLM, ImageClassification)
