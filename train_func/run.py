"""Run: what you ask for, as it crosses the wire from the notebook to the workers.

A Run that exists is valid. Where it executes, and on what hardware, belongs to Local(...) and Cluster(...).
"""

import dataclasses
import difflib
import hashlib
import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

from train_func.errors import InvalidInput
from train_func.plain import plain
from train_func.tables import is_table, saved
from train_func.validity import TABLES, faults

_MISSING = "Run(model=..., dataset=...) has no defaults for these two"
READABLE_LENGTH = 24  # characters of a name before its hash; pods add "-worker-999" and must stay below 63
HASH_LENGTH = 10


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training, asked for. All faults are reported at once.

    A Path and numpy's numbers become plain values; a pandas DataFrame or a datasets.Dataset is saved, once and by
    content, and named by its file.

    Raises:
        InvalidInput: naming every field that cannot work, what it was and what it may be.
    """

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
    workers: int = 2
    """Pods, or their stand-ins on this machine."""
    epochs: int = 3
    """Times every training row is used."""
    batch_size: int = 16
    """Rows per optimiser step over all workers together."""
    micro_batch_size: int = 8
    """Most rows one rank holds at once."""
    learning_rate: float = 5e-5
    """Peak learning rate."""
    seed: int = 42
    """Seed of the split, the order of the rows, the new layers and dropout."""
    max_attempts: int = 3
    """Starts without progress after which a retryable failure becomes final."""
    deadline: int = 24 * 3600
    """Seconds after which the job fails."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Values of your own, plain JSON, handed to the function beside the fields above."""

    def __new__(cls, *unnamed: Any, **given: Any) -> Self:
        """Refuses a misspelt field with the one that was meant, and what is given without a name, or not at all."""
        found = [_unknown(name) for name in given if name not in field_names()]
        if unnamed:
            found.append("the fields of a Run are given by name: Run(model=..., dataset=...)")
        elif given:  # a copy is made of nothing, and filled afterwards
            found += [f"{name}= is missing: {_MISSING}" for name in ("model", "dataset") if name not in given]
        if found:
            raise InvalidInput(found)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        unsaved: list[str] = []
        for name in field_names():
            value = getattr(self, name)
            try:
                held = saved(value, name) if name in TABLES and is_table(value) else plain(value)
            except InvalidInput as refused:
                unsaved += refused.faults
            else:
                object.__setattr__(self, name, held)
        if found := [*unsaved, *faults(self)]:
            raise InvalidInput(found)
        object.__setattr__(self, "labels", tuple(self.labels))
        object.__setattr__(self, "parameters", json.loads(json.dumps(dict(self.parameters))))

    def to_dict(self) -> dict[str, Any]:
        """The Run as plain JSON values; ``from_dict`` is its inverse."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        plain["labels"] = list(self.labels)
        plain["parameters"] = json.loads(json.dumps(self.parameters))
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """Raises InvalidInput when a field is unknown or invalid."""
        return cls(**{**plain, "labels": tuple(plain.get("labels", ()))})


# Editors and help() would otherwise show the signature of __new__, which takes anything.
Run.__signature__ = inspect.signature(partial(Run.__init__, None))  # type: ignore[attr-defined, arg-type]


def field_names() -> tuple[str, ...]:
    """Names of all fields of Run, in their order."""
    return tuple(f.name for f in dataclasses.fields(Run))


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name, field_names(), n=1)
    near = f"did you mean {close[0]!r}?" if close else f"its fields are {', '.join(field_names())}."
    return f"Run has no field {name!r}: {near} Values of your own go in parameters"


def name_of(
    run: Run, *, source_sha256: str, data_fingerprint: str, model_fingerprint: str, package_version: str
) -> str:
    """A readable part and a hash of everything that decides the result: the same inputs give the same name."""
    identity = json.dumps(
        [run.to_dict(), source_sha256, data_fingerprint, model_fingerprint, package_version], sort_keys=True
    )
    readable = "-".join(_slug(address) for address in (run.model, run.dataset))
    readable = readable[:READABLE_LENGTH].strip("-")
    return f"{readable}-{hashlib.sha256(identity.encode()).hexdigest()[:HASH_LENGTH]}"


NAME = re.compile(rf"[a-z][a-z0-9-]*-[0-9a-f]{{{HASH_LENGTH}}}")  # what ``name_of`` returns


def _slug(address: str) -> str:
    last = re.split(r"[/\\]", address.rstrip("/\\"))[-1]
    words = re.sub(r"[^a-z0-9]+", "-", last.rsplit(".", 1)[0].lower()).strip("-")[:12].strip("-")
    return words if words[:1].isalpha() else f"r-{words}".rstrip("-")
