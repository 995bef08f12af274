"""Manifest and pointer: which files a checkpoint is made of, and which checkpoints a run has."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from train_func.errors import StorageFailed

FORMAT = 1


@dataclass(frozen=True)
class FileEntry:
    """A file of a checkpoint: where it lies in the store, its bytes and their SHA-256 (hex)."""

    key: str
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A complete checkpoint: it is written when all of its files are in the store."""

    run: str
    generation: int
    attempt: int
    """That wrote it."""
    step: int
    """Steps done."""
    world_size: int
    """Of the ranks that wrote it; each has a file of its own in it."""
    fingerprint: str
    """Of what the training is made of: a checkpoint of another one is of no use."""
    files: Mapping[str, FileEntry]
    """By name."""
    format: int = FORMAT

    def to_json(self) -> bytes:
        """The content of the file."""
        return json.dumps(asdict(self), indent=1, sort_keys=True).encode()

    @classmethod
    def from_json(cls, data: bytes, where: str) -> Self:
        """Raises StorageFailed (reason "damaged") when it is none; ``where``: how its message calls it."""
        plain = _read(data, where)
        try:
            files = {name: FileEntry(**file) for name, file in plain.pop("files").items()}
            return cls(**plain, files=files)
        except (TypeError, KeyError, AttributeError) as error:
            raise StorageFailed(f"{where} is no manifest of a checkpoint: {error}", reason="damaged") from error


@dataclass(frozen=True)
class Kept:
    """A checkpoint that the pointer names: its manifest, by key and SHA-256 (hex)."""

    step: int
    key: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Pointer:
    """Which checkpoints there are, and who may add to them: the highest attempt that has written here."""

    attempt: int
    moves: int = 0
    """How often it was written: no two of its contents are the same."""
    kept: tuple[Kept, ...] = field(default=())
    """The newest first."""
    format: int = FORMAT

    def to_json(self) -> bytes:
        """The content of the file."""
        plain = asdict(self)
        return json.dumps({**plain, "sha256": _digest(plain)}, indent=1, sort_keys=True).encode()

    @classmethod
    def from_json(cls, data: bytes, where: str) -> Self:
        """Raises StorageFailed (reason "damaged") when it is none; ``where``: how its message calls it."""
        plain = _read(data, where)
        if plain.pop("sha256", None) != _digest(plain):
            raise StorageFailed(f"{where} is damaged: its SHA-256 is not the one in it", reason="damaged")
        try:
            kept = tuple(Kept(**of) for of in plain.pop("kept"))
            pointer = cls(**plain, kept=kept)
        except (TypeError, KeyError) as error:
            raise StorageFailed(f"{where} is no pointer to checkpoints: {error}", reason="damaged") from error
        return pointer


def sha256_of(data: bytes) -> str:
    """SHA-256 (hex)."""
    return hashlib.sha256(data).hexdigest()


def _digest(plain: Mapping[str, Any]) -> str:
    return sha256_of(json.dumps(plain, sort_keys=True).encode())


def _read(data: bytes, where: str) -> dict[str, Any]:
    try:
        plain = json.loads(data)
    except ValueError as error:
        raise StorageFailed(f"{where} is damaged: it is no JSON", reason="damaged") from error
    if not isinstance(plain, dict) or plain.get("format") != FORMAT:
        raise StorageFailed(f"{where} is damaged, or of another version of train_func", reason="damaged")
    return plain
