"""Task: what kind of training a Run asks for. The task is plain data; its worker half, named in it, does the work."""

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import PurePath
from typing import Any, ClassVar

from train_func.errors import InvalidInput
from train_func.fields import NamedFields
from train_func.plain import plain
from train_func.tables import is_table, saved
from train_func.validity import json_fault

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
    def from_dict(given: Mapping[str, Any]) -> "Task":
        """The task in ``given``; one of another package stays StoredTask until it is loaded.

        Raises:
            InvalidInput: no kind is named, or a field is unknown.
        """
        if not isinstance(given.get(KIND), str):
            raise InvalidInput(f"task={dict(given)!r}: a task is expected, or what its to_dict() returned")
        stored = StoredTask(named=given[KIND], held={name: value for name, value in given.items() if name != KIND})
        return stored.load() if stored.named.startswith(f"{__package__}.") else stored

    def load(self) -> "Task":
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
