"""The tasks of this package: each says what is trained on what, and is registered in TASKS."""

from dataclasses import dataclass
from typing import ClassVar

from train_func.task import Task
from train_func.validity import brief, names_fault, text_fault, whole_fault

_DATASET = (
    "a non-empty text or a Path is expected (a file, a folder, a Hub id, an address), a pandas DataFrame or a "
    "datasets.Dataset"
)


@dataclass(frozen=True, kw_only=True)
class TextClassification(Task):
    """Every text has one class out of several. The fields are checked with those of the Run, all at once."""

    worker: ClassVar[str] = "train_func.worker.tasks.text_classification:TextClassifier"
    inputs: ClassVar[tuple[str, ...]] = ("model", "dataset", "held_out")
    splits: ClassVar[tuple[str, ...]] = ("held_out",)
    tables: ClassVar[tuple[str, ...]] = ("dataset", "held_out")

    model: str
    """Hub id, folder, store address, or ``package://NAME/FOLDER`` inside an installed package."""
    dataset: str
    """Hub id, csv/tsv/json/jsonl/parquet file, saved ``datasets`` folder, store address, DataFrame or Dataset."""
    model_revision: str = "main"
    """Branch, tag or commit of a Hub model."""
    dataset_revision: str = "main"
    """Branch, tag or commit of a Hub dataset."""
    subset: str | None = None
    """Configuration of a Hub dataset that has several."""
    text: str = "text"
    """Column with the text."""
    label: str = "label"
    """Column with the class: integers or text."""
    labels: tuple[str, ...] = ()
    """Names of the classes, in the order of the integer labels 0, 1, ...; empty: the values themselves."""
    held_out: float | str = 0.2
    """Share of the rows kept for evaluation, the name of a split, or a file, DataFrame or Dataset."""
    samples: int | None = None
    """Use only so many rows, drawn with the seed."""
    max_length: int = 512
    """Tokens after which a text is cut."""

    def faults(self, unsaved: frozenset[str]) -> list[str]:
        """What is wrong with the fields."""
        found = [text_fault(name, getattr(self, name)) for name in ("model", "model_revision", "dataset_revision")]
        found += [text_fault("dataset", self.dataset, _DATASET)] if "dataset" not in unsaved else []
        found += [text_fault(name, getattr(self, name)) for name in ("text", "label")]
        found.append(text_fault("subset", self.subset) if self.subset is not None else None)
        found.append(names_fault("labels", self.labels, "('negative', 'positive')"))
        found.append(_held_out(self.held_out) if "held_out" not in unsaved else None)
        found.append(whole_fault("samples", self.samples, 2, 10**12) if self.samples is not None else None)
        found.append(whole_fault("max_length", self.max_length, 4, 1_000_000))
        if isinstance(self.text, str) and self.text == self.label:
            found.append(f"text and label are both {self.text!r}: two different columns are expected")
        return [fault for fault in found if fault]


def _held_out(share: object) -> str | None:
    if isinstance(share, str):
        return text_fault("held_out", share)
    if isinstance(share, (int, float)) and not isinstance(share, bool) and 0 < share < 1:
        return None
    return f"held_out={brief(share)}: a share between 0 and 1, the name of a split, a file or a table is expected"


TASKS: tuple[type[Task], ...] = (TextClassification,)
