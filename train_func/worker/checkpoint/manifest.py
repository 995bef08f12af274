"""The manifest of a checkpoint: of which training and step it is, and which files it is made of.

It is written last, so a checkpoint that has one is complete. It holds a SHA-256 of itself beside those of the files:
whatever is changed in the store afterwards shows.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from train_func.codec import Record, read_json
from train_func.errors import StorageFailed
from train_func.result import FileEntry


@dataclass(frozen=True, kw_only=True)
class Manifest(Record):
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

    def to_json(self, indent: int | None = 1) -> bytes:
        """Returns the content of the manifest's file."""
        plain = self.to_dict()
        return json.dumps({**plain, "sha256": _digest(plain)}, indent=indent, sort_keys=True).encode()

    @classmethod
    def from_json(cls, data: bytes, where: str = "the manifest") -> Self:
        """Raises StorageFailed (reason "damaged") when ``data`` is no manifest; ``where``: its name in the message."""
        plain = read_json(data, where)
        if plain.pop("sha256", None) != _digest(plain):
            raise StorageFailed(f"{where} is damaged: its SHA-256 is not the one in it", reason="damaged")
        return cls.from_dict(plain, where)


def _digest(plain: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
