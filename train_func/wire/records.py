"""The records of a run in its store: what was asked for, and of each attempt its lease and how every worker ended.

Each is a dataclass that is written and read here alone, with a format version; a record of another format is refused by
its name.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from train_func.errors import CAUSES, Cause, InvalidInput, StorageFailed
from train_func.fields import field_names
from train_func.run import RECORD_KEY, Run, name_of
from train_func.version import VERSION
from train_func.wire import exits
from train_func.wire.codec import Record
from train_func.wire.layout import RunKeys

REMEDY = (
    "The workers need the version that submits: build their image anew (make image), or install theirs here; or submit "
    "the run with fresh=True"
)


@dataclass(frozen=True, kw_only=True)
class RunRecord(Record):
    """A Run under its name, with what the name was made of."""

    FORMAT = 3
    REMEDY = REMEDY

    run: Run
    name: str
    generation: int
    store: str
    function: str
    source_sha256: str
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    """Fingerprints of the inputs, of the task's by field and of the run's by key: the commit of what lies on the
    Hub, the address of a claim, else the hash of the content, for a named file with its ending."""
    wheels: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of those that its workers unpack before their ranks start, by file name."""
    resumes: str = ""
    """Name of the run with whose checkpoint it goes on, as long as it has none of its own. No part of the name."""
    resumes_generation: int = 0
    package_version: str = VERSION
    """Version of the package that submitted it; no part of the name."""
    submission: int = 0
    """Its number, from 1; 0 where another launcher has started the function. No part of the name."""
    submitted: str = ""
    """When, ISO, UTC: tells the attempts of this submission from those before it. No part of the name."""
    module: str = "__main__"
    """Where the function was written: its classes have this module in pickles, here and there. No part of the name."""
    held_out_sha256: str = ""
    """Hash of the held-out rows, on which two models are compared; empty where nothing tells which they are."""

    @property
    def keys(self) -> RunKeys:
        """The keys of everything that it keeps in the store."""
        return RunKeys(self.name, self.generation)

    @property
    def job_name(self) -> str:
        """Name of the job."""
        return self.keys.job_name

    def parameters(self) -> dict[str, Any]:
        """Returns what ``train_func`` is called with: own values as they are; with a task also the Run, and the record.

        A Session finds the record of a run without a task in the folder of the job.
        """
        fields = self.run.to_dict()
        own_values: dict[str, Any] = fields.pop("parameters")
        return {**fields, **own_values, RECORD_KEY: self.to_dict()} if self.run.task else own_values

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Any], store: str = "") -> Self:
        """The record inside what ``train_func`` was called with.

        A dict of Run's fields and own values, as another launcher hands it over, gets a record of its own in ``store``.

        Raises:
            InvalidInput: when ``parameters`` is none of these, or an own value hides a field of the Run.
        """
        if not isinstance(parameters, Mapping):
            raise InvalidInput(
                f"Session was given {type(parameters).__name__}: "
                "hand it the parameters that train_func was called with, unchanged"
            )
        stored = parameters.get(RECORD_KEY)
        if isinstance(stored, Mapping):
            return cls.from_dict(stored, "the record of the run")
        run = Run.from_dict(_fields_and_values(parameters))
        run = replace(run, task=run.task and run.task.load())  # its name is made of its own fields
        made_of: dict[str, Any] = {"function": "train_func", "source_sha256": "", "fingerprints": {}}
        return cls(run=run, name=name_of(run, **made_of), generation=1, store=store, **made_of)


@dataclass(frozen=True, kw_only=True)
class SubmissionRecord(Record):
    """One submission of a run: what its workers read, and where its job is; written before the job is created."""

    FORMAT = 3
    REMEDY = REMEDY

    run: RunRecord
    cells: Mapping[str, Any]
    """Map from lines of the source to the cells that they came from."""
    manifest: Mapping[str, Any]
    backend: str
    """Its registered name."""
    place: str
    """Name of the place, in the backend's words."""
    identity: Mapping[str, str]
    """Identity of that place."""
    found_by: Mapping[str, Any]
    """The options that lead to the job, by name."""
    options: Mapping[str, Any]
    """All options that the job was submitted with, by name."""


@dataclass(frozen=True, kw_only=True)
class Numerics(Record):
    """How a generation computes: decided by its first attempt, kept by every later one, in ``numerics.json``."""

    precision: Literal["bf16", "fp32"]
    micro_batch_tokens: int | None
    """How many tokens a micro-batch has, on average over all rows; None: any number."""
    micro_batch_size: int | None
    """Most rows of a micro-batch; None: any number."""
    num_ranks: int
    """Ranks that the first attempt was to have: each has as many micro-batches of a global batch, while rows last."""
    devices: tuple[str, ...]
    """What the ranks compute on, each kind once: of the first attempt, and in a ``setup.json`` of that attempt."""


@dataclass(frozen=True, kw_only=True)
class AttemptSetup(Record):
    """What an attempt computes with, in its ``setup.json``; no part of it is in the name of the run."""

    workers: int
    world_size: int
    versions: Mapping[str, str]
    """Versions of Python, of this package and of those that compute."""
    machine: Mapping[str, str]
    """Machine of rank 0."""
    numerics: Numerics | None
    """None where the function opens no Session."""


def _fields_and_values(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of Run as they are, and everything else as values of the function's own."""
    fields = {name: value for name, value in parameters.items() if name in field_names(Run)}
    extra_values = {name: value for name, value in parameters.items() if name not in fields}
    values = fields.get("parameters", {})
    if hidden := [name for name in field_names(Run) if name in values and values[name] == parameters.get(name)]:
        raise InvalidInput(
            f"{', '.join(hidden)}: a value of your own hides the field of Run of this name; rename it, or submit "
            "the run, which hands over your values alone"
        )
    return {**fields, "parameters": {**values, **extra_values}}


BEAT_SECONDS = 5.0  # between two signs of life
LONGEST_TERMINATION = 4096  # bytes; Kubernetes cuts what is longer


@dataclass(frozen=True, kw_only=True)
class Lease(Record):
    """A worker claims one number by it: ``lease.json``."""

    attempt: int
    generation: int = 1
    pod: str = ""
    pod_uid: str = ""
    worker: int = 0
    submitted: str = ""
    """Time of the submission it belongs to, ISO, UTC."""
    started: str = ""
    formed: bool = True
    """Whether a group has formed under it; else it stands for workers that ended before."""


@dataclass(frozen=True, kw_only=True)
class SignOfLife(Record):
    """Worker 0 says by it that it lives: ``alive.json``, written again and again until the job is over.

    As long as the file changes the worker lives, whatever the clocks of two machines show.
    """

    time: str
    """ISO, UTC."""
    pod: str
    is_over: bool = False
    """Whether it is the last one: no worker of the job starts again."""


@dataclass(frozen=True)
class Verdict:
    """The exit of a worker, and why; no cause when the code is 0."""

    exit_code: int
    cause: Cause | None
    message: str
    worker: int
    root_cause: bool = True
    """Whether it follows no other worker's end."""
    follows: int | None = None
    """The worker whose end it follows, where that is known."""
    hangs: int | None = None
    """The rank that made no more progress, where a single one is known."""

    @property
    def retryable(self) -> bool:
        return exits.retryable(self.exit_code)

    @property
    def reason(self) -> str:
        """The message, and which worker it is about."""
        return self.message if self.message.startswith("worker ") else f"worker {self.worker}: {self.message}"


@dataclass(frozen=True)
class Failure:
    """The exception that ended a rank; ``time`` is ISO, UTC."""

    type: str
    message: str
    traceback: str
    time: str
    missing_file: str = ""
    """The relative path of a file that the function opened and that does not exist."""
    checkpoints_of: str = ""
    """The run none of whose checkpoints could be resumed."""


@dataclass(frozen=True, kw_only=True)
class RankRecord:
    """How a rank ended. ``separate``: it had torch and never formed a process group with all the others.

    ``stacks``: where it was when its supervisor last asked, as in a hang.
    """

    rank: int
    exit_code: int | None
    error: Failure | None = None
    """None too where it only followed from another rank's."""
    separate: bool = False
    stacks: str = ""
    stopped_at: str = ""
    """The traceback of the function where a signal ended it."""


@dataclass(frozen=True, kw_only=True)
class EndRecord(Verdict, Lease):
    """How a worker ended, with its ranks: ``worker-<w>.json``. A Verdict, and the lease that it ended under."""

    ended: str = ""
    step: int = 0
    """The last of the training that was done; 0 where none was told."""
    ranks: tuple[RankRecord, ...] = ()

    @property
    def facts(self) -> str:
        """The fields that decide about further attempts, as a name without a slash.

        One listing of the attempts reads them of all workers.
        """
        facts = (self.worker, self.exit_code, self.cause or "", int(self.root_cause), self.step)
        return "-".join(map(str, (*facts, digest_of(self.submitted))))

    @classmethod
    def of_facts(cls, attempt: int, facts: str) -> Self | None:
        """Reads a record with these fields, and with ``digest_of`` the submission in its place.

        Returns None if another version wrote them.
        """
        try:
            worker, code, cause, is_root, step, submission = facts.split("-")
            return cls(
                exit_code=int(code),
                cause=cause if cause in CAUSES else None,
                message="",
                worker=int(worker),
                root_cause=is_root == "1",
                attempt=attempt,
                submitted=submission,
                step=int(step),
            )
        except ValueError:
            return None

    @property
    def errors(self) -> list[tuple[RankRecord, Failure]]:
        """The failures of its ranks, in the order in which they happened."""
        return sorted(((rank, rank.error) for rank in self.ranks if rank.error), key=lambda pair: pair[1].time)


def digest_of(submitted: str) -> str:
    """A digest stands for the time of a submission in the name of an object."""
    return hashlib.sha256(submitted.encode()).hexdigest()[:12]


@dataclass(frozen=True, kw_only=True)
class Termination(Record):
    """The termination message of a worker's container."""

    attempt: int | None
    """None when none had begun."""
    exit_code: int
    cause: Cause | None
    message: str

    def to_json(self, indent: int | None = None) -> bytes:
        """Returns at most LONGEST_TERMINATION bytes: of a longer message the end is left out."""
        text = super().to_json(indent)
        excess = len(text) - LONGEST_TERMINATION
        if excess <= 0:
            return text
        return replace(self, message=self.message[: len(self.message) - max(1, excess // 6)]).to_json(indent)

    @classmethod
    def read(cls, text: str) -> Self | None:
        """Returns None when no supervisor wrote the text: it is then the end of a log."""
        try:
            return cls.from_json(text.encode())
        except StorageFailed:
            return None
