"""The records of a run in its store, as dataclasses."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from train_func.errors import InvalidInput
from train_func.layout import RunKeys
from train_func.run import Run, field_names, name_of
from train_func.validity import RECORD_KEY


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A Run under its name, with what the name was made of: the file ``run.json`` of a job."""

    run: Run
    name: str
    generation: int
    store: str
    function: str
    source_sha256: str
    data_fingerprint: str
    model_fingerprint: str
    package_version: str
    submitted: str = ""
    """When, ISO, UTC: tells the attempts of this submission from those before it. No part of the name."""

    @property
    def keys(self) -> RunKeys:
        """Where in the store it keeps everything."""
        return RunKeys(self.name, self.generation)

    @property
    def job_name(self) -> str:
        """Name of the PyTorchJob, or of its twin: a DNS label."""
        return self.name if self.generation == 1 else f"{self.name}-g{self.generation}"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; ``from_dict`` is its inverse."""
        return {**{f.name: getattr(self, f.name) for f in fields(self)}, "run": self.run.to_dict()}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """Raises InvalidInput when the Run in it is invalid, or the record is of another version of this package."""
        known = {own.name for own in fields(cls)}
        if strange := set(plain) - known | (_ALWAYS - set(plain)):
            raise InvalidInput(_other_version(plain, strange))
        return cls(**{**plain, "run": Run.from_dict(plain["run"])})

    def parameters(self) -> dict[str, Any]:
        """What ``train_func`` is called with: the fields of Run, your own values, and the record itself."""
        given = self.run.to_dict()
        return {**given.pop("parameters"), **given, RECORD_KEY: self.to_dict()}

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Any], store: str = "") -> Self:
        """The record inside what ``train_func`` was called with.

        A dict of Run's fields and own values, as another launcher hands it over, gets a record of its own in ``store``.

        Raises:
            InvalidInput: when ``parameters`` is neither.
        """
        if not isinstance(parameters, Mapping):
            raise InvalidInput(
                f"Session was given {type(parameters).__name__}: "
                "hand it the parameters that train_func was called with, unchanged"
            )
        if RECORD_KEY in parameters:
            return cls.from_dict(parameters[RECORD_KEY])
        if lacking := [name for name in ("model", "dataset") if name not in parameters]:
            raise InvalidInput(f"the parameters lack {' and '.join(lacking)}: they are the fields of a Run")
        run = Run.from_dict(_sorted_out(parameters))
        nothing = dict.fromkeys(("source_sha256", "data_fingerprint", "model_fingerprint", "package_version"), "")
        return cls(run=run, name=name_of(run, **nothing), generation=1, store=store, function="train_func", **nothing)


_ALWAYS = {own.name for own in fields(RunRecord)} - {"submitted"}


def _other_version(plain: Mapping[str, Any], strange: set[str]) -> str:
    version = sys.modules["train_func"].__version__  # to import it from here would turn the arrows round
    return (
        f"the record of the run was written by train_func {plain.get('package_version', '(unknown)')}, and this is "
        f"train_func {version}: they differ in {', '.join(sorted(strange))}. The workers need the version that "
        "submits: build their image anew (make image), or install theirs here"
    )


def _sorted_out(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of Run as they are, everything else as own values."""
    own = {name: value for name, value in parameters.items() if name not in field_names()}
    given = {name: parameters[name] for name in parameters if name not in own}
    return {**given, "parameters": {**given.get("parameters", {}), **own}}
