"""Published: what a run says that it has published, read strictly: a store is not believed to hold what it should."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from train_func.errors import StorageFailed
from train_func.layout import MODEL_MANIFEST, SUMS
from train_func.storage.address import key_fault

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Published:
    """The manifest of a published model; every name in it stays below the folder it is fetched to."""

    files: Mapping[str, str]
    """SHA-256 (hex) by name."""
    metrics: Mapping[str, Any]
    note: str
    """What whoever takes the result has to know beside it; mostly empty."""
    data: bytes
    """The manifest as it lies in the store."""

    @classmethod
    def read(cls, data: bytes, where: str) -> Self:
        """Raises StorageFailed (reason "damaged") unless ``data`` is such a manifest; ``where``: how messages call it.

        It may name no files: a function may publish metrics alone.
        """
        try:
            plain = json.loads(data)
        except (ValueError, RecursionError):
            plain = None
        if not isinstance(plain, dict):
            raise _damaged(where, "it is no JSON object")
        listed, metrics, note = plain.get("files"), plain.get("metrics", {}), plain.get("note", "")
        if not isinstance(listed, dict) or not isinstance(metrics, dict) or not isinstance(note, str):
            raise _damaged(where, "its files and its metrics are not two JSON objects, or its note is no text")
        if faults := [fault for name, facts in listed.items() if (fault := _fault(name, facts, listed))]:
            raise _damaged(where, "; ".join(faults[:3]))
        return cls({name: facts["sha256"] for name, facts in listed.items()}, metrics, note, data)

    @property
    def sums(self) -> dict[str, str]:
        """What SHA256SUMS says beside it: of every file, and of the manifest itself."""
        return {**self.files, MODEL_MANIFEST: hashlib.sha256(self.data).hexdigest()}


def read_sums(data: bytes) -> dict[str, str]:
    """SHA-256 by name, as ``sha256sum`` writes them."""
    lines = (line.partition("  ") for line in data.decode(errors="replace").split("\n") if line)
    return {name: sha256 for sha256, _, name in lines}


def _fault(name: str, facts: object, listed: Mapping[str, object]) -> str | None:
    fault = key_fault(name) or ("it holds a backslash" if "\\" in name else None)
    if fault or name in (MODEL_MANIFEST, SUMS) or name.startswith("."):
        return f"the name {name!r} of a file cannot be: {fault or 'it is kept for other use'}"
    if any(name.startswith(f"{other}/") for other in listed):
        return f"the name {name!r} lies below another file"
    size, sha256 = (facts.get("size"), facts.get("sha256")) if isinstance(facts, dict) else (None, None)
    if type(size) is not int or size < 0 or not (isinstance(sha256, str) and _SHA256.fullmatch(sha256)):
        return f"{name!r} has no size and SHA-256"
    return None


def _damaged(where: str, what: str) -> StorageFailed:
    return StorageFailed(
        f"{where} is damaged: {what}; nothing was handed over. Submit the run with fresh=True to publish it again",
        reason="damaged",
    )
