"""The records of a run in its store, as dataclasses; each says of which format it is."""

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from typing import Any, Literal, Self

from train_func.errors import InvalidInput
from train_func.fields import field_names
from train_func.layout import RunKeys
from train_func.run import RECORD_KEY, Run, name_of
from train_func.validity import brief
from train_func.version import VERSION

RUN_FORMAT = 2


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A Run under its name, with what the name was made of: the file ``run.json`` of a job."""

    run: Run
    name: str
    generation: int
    store: str
    function: str
    source_sha256: str
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    """Of the inputs of the task, by its field, and of those of the run, by key: the commit of what lies on the Hub, the
    address of a claim, else of the content; that of a named file with its ending."""
    wheels: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of those that its workers unpack before their ranks start, by file name."""
    resumes: str = ""
    """Name of the run with whose checkpoint it goes on, as long as it has none of its own. No part of the name."""
    resumes_generation: int = 0
    package_version: str = VERSION
    """That submitted it. No part of the name."""
    submitted: str = ""
    """When, ISO, UTC: tells the attempts of this submission from those before it. No part of the name."""
    module: str = "__main__"
    """Where the function was written: its classes have this module in pickles, here and there. No part of the name."""
    held_out_sha256: str = ""
    """Of the held-out rows, on which two models are compared; empty where nothing tells which they are."""
    format: int = RUN_FORMAT

    @property
    def keys(self) -> RunKeys:
        """Where in the store it keeps everything."""
        return RunKeys(self.name, self.generation)

    @property
    def job_name(self) -> str:
        """Name of the PyTorchJob, or of its twin."""
        return self.keys.job_name

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; ``from_dict`` is its inverse."""
        own = {name: getattr(self, name) for name in field_names(RunRecord)}
        return {**own, "run": self.run.to_dict(), "fingerprints": dict(self.fingerprints), "wheels": dict(self.wheels)}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """The record of a run that this version can train.

        Raises:
            InvalidInput: the Run in it is invalid, or the record is of another format.
        """
        added = {own.name for own in fields(cls) if own.default is not MISSING or own.default_factory is not MISSING}
        strange = (set(plain) ^ set(field_names(cls))) - (added - set(plain) - {"format"})
        if strange or plain["format"] != RUN_FORMAT:
            raise InvalidInput(_other_format(plain, strange))
        return cls(**{**plain, "run": Run.from_dict(plain["run"])})

    def parameters(self) -> dict[str, Any]:
        """What ``train_func`` is called with: own values as they are; with a task also the Run, and the record.

        A Session finds the record of a run without a task in the folder of the job.
        """
        given = self.run.to_dict()
        own: dict[str, Any] = given.pop("parameters")
        return {**given, **own, RECORD_KEY: self.to_dict()} if self.run.task else own

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Any], store: str = "") -> Self:
        """The record inside what ``train_func`` was called with.

        ``Run.to_dict()`` under RECORD_KEY, or a dict of Run's fields and own values, as another launcher hands it
        over, gets a record of its own in ``store``.

        Raises:
            InvalidInput: when ``parameters`` is none of these, or an own value hides a field of the Run.
        """
        if not isinstance(parameters, Mapping):
            raise InvalidInput(
                f"Session was given {type(parameters).__name__}: "
                "hand it the parameters that train_func was called with, unchanged"
            )
        held = parameters.get(RECORD_KEY)
        if isinstance(held, Mapping) and "run" in held:
            return cls.from_dict(held)
        if not isinstance(held, Mapping | None):
            raise InvalidInput(f"{RECORD_KEY}={brief(held)}: run.to_dict() is expected, as submit hands it over")
        run = Run.from_dict(_sorted_out(parameters) if held is None else held)
        run = replace(run, task=run.task and run.task.load())  # its name is made of its own fields
        made_of: dict[str, Any] = {"function": "train_func", "source_sha256": "", "fingerprints": {}}
        return cls(run=run, name=name_of(run, **made_of), generation=1, store=store, **made_of)


@dataclass(frozen=True, kw_only=True)
class Numerics:
    """How a generation computes: found by its first attempt, kept by every later one, in ``numerics.json``.

    The seconds are those of one product, None where they did not decide.
    """

    precision: Literal["bf16", "fp32"]
    num_micro_batches: int
    """Into which every global batch is cut."""
    micro_batch_size: int
    """Most rows of one of them."""
    device: str
    fp32_seconds: float | None = None
    bf16_seconds: float | None = None
    format: int = 1

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """Raises InvalidInput when it is of another format."""
        plain = json.loads(text)
        if plain.get("format") != 1 or set(plain) != set(field_names(cls)):
            raise InvalidInput(f"numerics.json is of another version of train_func: {plain}; submit with fresh=True")
        return cls(**plain)

    def idle_ranks_fault(self, num_ranks: int, *, is_submitted: bool) -> str | None:
        """What is said of more ranks than there are micro-batches: some would never have work.

        ``is_submitted``: by ``submit``, which another launcher does not call; only that can cut anew.
        """
        if num_ranks <= self.num_micro_batches:
            return None
        fresh = ", or submit with fresh=True, which trains from the beginning and cuts anew" if is_submitted else ""
        return (
            f"{num_ranks} ranks: every global batch of this run was cut into {self.num_micro_batches} micro-batches by "
            f"its first attempt, and a rank takes at least one: use at most {self.num_micro_batches} ranks in all "
            f"workers together{fresh}"
        )


@dataclass(frozen=True, kw_only=True)
class AttemptSetup:
    """With what an attempt computes, in its ``setup.json``; no part of it is in the name of the run."""

    workers: int
    world_size: int
    versions: Mapping[str, str]
    """Of Python, of this package and of those that compute."""
    machine: Mapping[str, str]
    """Of rank 0."""
    numerics: Mapping[str, Any] | None
    """None where the function opens no Session."""
    format: int = 1


@dataclass(frozen=True, kw_only=True)
class ClaimListing:
    """What lay in a claim at the start of an attempt, by names, sizes and times of its files; no content was read."""

    sha256: str
    """Of the listing."""
    num_files: int
    num_bytes: int


@dataclass(frozen=True, kw_only=True)
class AttemptInputs:
    """What an attempt has read and no fingerprint of its run tells, in its ``inputs.json``."""

    claims: Mapping[str, ClaimListing]
    """By the address, ``pvc://CLAIM/PATH``."""
    format: int = 1

    def to_json(self) -> bytes:
        """The content of the file."""
        return json.dumps(asdict(self), indent=1).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Self | None:
        """None where it is of another format."""
        plain = json.loads(text)
        if plain.get("format") != 1:
            return None
        return cls(claims={address: ClaimListing(**listing) for address, listing in plain["claims"].items()})


def _other_format(plain: Mapping[str, Any], strange: set[str]) -> str:
    differ = f" (they differ in {', '.join(sorted(strange))})" if strange else ""
    return (
        f"the record of the run was written by train_func {plain.get('package_version', '(unknown)')} in format "
        f"{plain.get('format', 1)}, and this is train_func {VERSION}, which trains format {RUN_FORMAT}"
        f"{differ}. The workers need the version that "
        "submits: build their image anew (make image), or install theirs here"
    )


def _sorted_out(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of Run as they are, everything else as own values."""
    own = {name: value for name, value in parameters.items() if name not in field_names(Run)}
    given = {name: parameters[name] for name in parameters if name not in own}
    told = given.get("parameters", {})
    if hidden := [name for name in field_names(Run) if name in told and told[name] == parameters.get(name)]:
        raise InvalidInput(
            f"{', '.join(hidden)}: a value of your own hides the field of Run of this name; where the function is "
            f"called without submit, call it so: train_func({{**run.parameters, {RECORD_KEY!r}: run.to_dict()}})"
        )
    return {**given, "parameters": {**told, **own}}
