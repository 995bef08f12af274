"""What is wrong with the fields that several tasks have."""

from collections.abc import Mapping
from typing import Protocol

from train_func.validity import brief, names_fault, text_fault, whole_fault

_DATASET = (
    "a non-empty text or a Path is expected (a file, a folder, a Hub id, an address), a pandas DataFrame or a "
    "datasets.Dataset"
)


class RowFields(Protocol):
    """Of a task with rows; some have ``labels`` too."""

    @property
    def dataset(self) -> object: ...
    @property
    def dataset_revision(self) -> str: ...
    @property
    def subset(self) -> str | None: ...
    @property
    def held_out(self) -> object: ...
    @property
    def samples(self) -> int | None: ...


class TextFields(RowFields, Protocol):
    """Of a task with a model of texts."""

    @property
    def model(self) -> str: ...
    @property
    def model_revision(self) -> str: ...
    @property
    def max_length(self) -> int: ...


def shared_faults(task: TextFields, unsaved: frozenset[str]) -> list[str | None]:
    """Of the fields that every task with a model of texts has."""
    found = [text_fault(name, getattr(task, name)) for name in ("model", "model_revision")]
    return [*found, *row_faults(task, unsaved), whole_fault("max_length", task.max_length, 4, 1_000_000)]


def row_faults(task: RowFields, unsaved: frozenset[str]) -> list[str | None]:
    """Of the fields that every task with rows has."""
    found = [text_fault("dataset_revision", task.dataset_revision)]
    found += [text_fault("dataset", task.dataset, _DATASET)] if "dataset" not in unsaved else []
    found.append(text_fault("subset", task.subset) if task.subset is not None else None)
    if hasattr(task, "labels"):
        found.append(names_fault("labels", task.labels, "('negative', 'positive')"))
    found.append(_held_out(task.held_out) if "held_out" not in unsaved else None)
    found.append(whole_fault("samples", task.samples, 2, 10**12) if task.samples is not None else None)
    return found


def _held_out(share: object) -> str | None:
    if isinstance(share, str):
        return text_fault("held_out", share)
    if isinstance(share, (int, float)) and not isinstance(share, bool) and 0 < share < 1:
        return None
    return f"held_out={brief(share)}: a share between 0 and 1, the name of a split, a file or a table is expected"


def same_column_faults(columns: Mapping[str, str | None]) -> list[str]:
    """Every two fields of ``columns``, by name, that name the same column."""
    named = [(field, name) for field, name in columns.items() if isinstance(name, str)]
    return [
        f"{other} and {field} are both {name!r}: two different columns are expected"
        for number, (field, name) in enumerate(named)
        for other, same in named[:number]
        if name == same
    ]
