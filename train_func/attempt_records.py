"""The records of an attempt: who claimed its number, how each worker ended, and what a pod says when it terminates.

Each is written and read here alone, with a format version; a record of another format is refused by its name.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

from train_func import exits
from train_func.errors import CAUSES, Cause, StorageFailed

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FORMAT = 1
BEAT_SECONDS = 5.0  # between two signs of life
LONGEST_TERMINATION = 4096  # bytes; Kubernetes cuts what is longer

Record = TypeVar("Record", bound="DataclassInstance")


@dataclass(frozen=True, kw_only=True)
class _File:
    """A record that is a file of its own."""

    def to_json(self) -> bytes:
        """Returns the content of the file."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1).encode()

    @classmethod
    def from_json(cls, data: bytes, where: str) -> Self:
        """Raises StorageFailed (reason "damaged") for another format; ``where``: how its message calls the record."""
        return _made(cls, _read(data, where), where)


@dataclass(frozen=True, kw_only=True)
class Lease(_File):
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
class SignOfLife(_File):
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
    def is_own_failure(self) -> bool:
        """Whether the worker failed by itself: it did not end well, lost no peer and was not told to stop."""
        return self.root_cause and self.cause not in (None, "peer", "preemption")


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
        facts = (self.worker, self.exit_code, self.cause or "", int(self.root_cause), int(bool(self.ranks)), self.step)
        return "-".join(map(str, (*facts, digest_of(self.submitted))))

    @classmethod
    def of_facts(cls, attempt: int, facts: str) -> Self | None:
        """Reads a record with these fields, and with ``digest_of`` the submission in its place.

        Returns None if another version wrote them.
        """
        try:
            worker, code, cause, is_root, has_ranks, step, submission = facts.split("-")
            return cls(
                exit_code=int(code),
                cause=cause if cause in CAUSES else None,
                message="",
                worker=int(worker),
                root_cause=is_root == "1",
                attempt=attempt,
                submitted=submission,
                step=int(step),
                ranks=(RankRecord(rank=0, exit_code=None),) if has_ranks == "1" else (),
            )
        except ValueError:
            return None

    @property
    def errors(self) -> list[tuple[RankRecord, Failure]]:
        """The failures of its ranks, in the order in which they happened."""
        return sorted(((rank, rank.error) for rank in self.ranks if rank.error), key=lambda pair: pair[1].time)

    @classmethod
    def from_json(cls, data: bytes, where: str) -> Self:
        """Raises StorageFailed (reason "damaged") for another format; ``where``: how its message calls the record."""
        plain = _read(data, where)
        ranks = tuple(_rank(rank, where) for rank in plain.pop("ranks", []))
        return replace(_made(cls, plain, where), ranks=ranks)


def digest_of(submitted: str) -> str:
    """A digest stands for the time of a submission in the name of an object."""
    return hashlib.sha256(submitted.encode()).hexdigest()[:12]


@dataclass(frozen=True, kw_only=True)
class Termination:
    """The termination message of a worker's container."""

    attempt: int | None
    """None when none had begun."""
    exit_code: int
    cause: Cause | None
    message: str

    def to_json(self) -> str:
        """At most LONGEST_TERMINATION bytes: of a longer message the end is left out."""
        said = self
        while (excess := len(text := json.dumps(asdict(said))) - LONGEST_TERMINATION) > 0:
            said = replace(said, message=said.message[: len(said.message) - max(1, excess // 6)])
        return text

    @classmethod
    def from_json(cls, text: str) -> Self | None:
        """None when no supervisor wrote it: it is then the end of a log."""
        try:
            plain = json.loads(text)
            found = cls(**plain)
        except (ValueError, TypeError):
            return None
        return replace(found, cause=found.cause if found.cause in CAUSES else None)


def _read(data: bytes, where: str) -> dict[str, Any]:
    try:
        plain = json.loads(data)
    except ValueError:
        plain = None
    if not isinstance(plain, dict):
        raise StorageFailed(f"{where} is damaged: it is no JSON object", reason="damaged")
    if "format" not in plain:  # as before there were tasks
        plain = {"root_cause" if name == "root" else name: value for name, value in plain.items()}
    if (found := plain.pop("format", FORMAT)) != FORMAT:
        raise StorageFailed(
            f"{where} is a record of format {found}, and this version of train_func reads format {FORMAT}: use the "
            "version that wrote it, or submit the run with fresh=True",
            reason="damaged",
        )
    return plain


def _made(kind: type[Record], plain: Mapping[str, Any], where: str) -> Record:
    try:
        return kind(**plain)
    except TypeError:
        names = ", ".join(sorted(set(plain) ^ {own.name for own in fields(kind)}))
        raise StorageFailed(
            f"{where} is damaged: its fields differ from those of format {FORMAT}: {names}", reason="damaged"
        ) from None


def _rank(plain: Mapping[str, Any], where: str) -> RankRecord:
    error = plain.get("error")
    return _made(RankRecord, {**plain, "error": _made(Failure, error, where) if error else None}, where)
