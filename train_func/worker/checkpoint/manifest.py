"""The manifest of a checkpoint: of which training and step it is, and which files it is made of.

It is written last, so a checkpoint that has one is complete. It holds a SHA-256 of itself beside those of the files:
whatever is changed in the store afterwards shows.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from train_func.errors import StorageFailed

FORMAT = 1


@dataclass(frozen=True)
class FileEntry:
    """A file of a checkpoint: the number of its bytes and their SHA-256 (hex)."""

    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A complete checkpoint."""

    run: str
    generation: int
    training: int
    """Its number in the function, from 0."""
    attempt: int
    """The attempt that saved the checkpoint."""
    step: int
    """Steps done."""
    world_size: int
    """The number of ranks that saved it; each has a file of its own in it."""
    fingerprint: str
    """A digest of model, precision and optimizer: a training of others cannot go on from the checkpoint."""
    files: Mapping[str, FileEntry]
    """By name."""
    format: int = FORMAT

    def to_json(self) -> bytes:
        """Returns the content of the manifest's file."""
        plain = asdict(self)
        return json.dumps({**plain, "sha256": _digest(plain)}, indent=1, sort_keys=True).encode()

    @classmethod
    def from_json(cls, data: bytes, where: str) -> Self:
        """Raises StorageFailed (reason "damaged") when ``data`` is no manifest; ``where``: its name in the message."""
        try:
            plain = json.loads(data)
        except ValueError as error:
            raise StorageFailed(f"{where} is damaged: it is no JSON", reason="damaged") from error
        if not isinstance(plain, dict) or plain.pop("sha256", None) != _digest(plain):
            raise StorageFailed(f"{where} is damaged: its SHA-256 is not the one in it", reason="damaged")
        if plain.get("format") != FORMAT:
            raise StorageFailed(f"{where} is of another version of train_func", reason="damaged")
        try:
            files = {name: FileEntry(**entry) for name, entry in plain.pop("files").items()}
            return cls(**plain, files=files)
        except (TypeError, KeyError, AttributeError) as error:
            raise StorageFailed(f"{where} is no manifest of a checkpoint: {error}", reason="damaged") from error


def _digest(plain: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
