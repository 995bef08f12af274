"""The result of a run, ``result.json`` and the manifest of its model: written with a format version, read strictly.

A store is not believed to hold what it should. A published model is copied to the folder that its readers know such
that the folder is a model only when it is whole: files first, then ``SHA256SUMS``, then the manifest, which is deleted
before the first file is replaced.
"""

import hashlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any, Self

from train_func.errors import StorageFailed
from train_func.process.failpoint import reach
from train_func.storage import Store, find
from train_func.storage.store import key_fault
from train_func.wire.codec import Record
from train_func.wire.layout import MODEL_MANIFEST, SUMS, RunKeys, later_generations
from train_func.wire.records import RunRecord

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class FileEntry:
    """A stored file: the number of its bytes and their SHA-256 (hex)."""

    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class _Manifest(Record):
    attempt: int
    generation: int = 1
    step: int | None = None
    num_steps: int | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    audit: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    returned: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, FileEntry]


@dataclass(frozen=True)
class Result:
    """The manifest of a published model; every name in it stays below the folder it is fetched to."""

    attempt: int
    """The attempt that has published."""
    files: Mapping[str, str]
    """SHA-256 (hex) by name."""
    sizes: Mapping[str, int]
    """Bytes by name."""
    metrics: Mapping[str, Any]
    returned: Mapping[str, Any]
    """What the function has returned."""
    note: str
    """What a user of the result has to know beside it; mostly empty."""
    data: bytes
    """The manifest as it lies in the store."""

    @staticmethod
    def write(attempt: int, generation: int, report: Mapping[str, Any], files: Mapping[str, FileEntry]) -> bytes:
        """Returns the manifest; ``report``: step, num_steps, metrics, audit, note, returned; ``files``: by name."""
        return _Manifest(attempt=attempt, generation=generation, files=files, **report).to_json()

    @classmethod
    def read(cls, data: bytes, where: str) -> Self:
        """Raises StorageFailed (reason "damaged") unless ``data`` is such a manifest; ``where``: how messages call it.

        It may name no files: a function may publish metrics alone.
        """
        manifest = _Manifest.from_json(data, where)
        faults = []
        for name, entry in manifest.files.items():
            if fault := name_fault(name, manifest.files):
                faults.append(fault)
            elif entry.size < 0 or not _SHA256.fullmatch(entry.sha256):
                faults.append(f"{name!r} has no size and SHA-256")
        if faults:
            raise StorageFailed(
                f"{where} is damaged: {'; '.join(faults[:3])}; nothing was handed over. Submit the run with fresh=True "
                "to publish it again",
                reason="damaged",
            )
        sums = {name: entry.sha256 for name, entry in manifest.files.items()}
        sizes = {name: entry.size for name, entry in manifest.files.items()}
        return cls(manifest.attempt, sums, sizes, manifest.metrics, manifest.returned, manifest.note, data)

    @property
    def values(self) -> dict[str, Any]:
        """Returns the metrics, and what the function has returned, which comes before a metric of the same name."""
        return {**self.metrics, **self.returned}

    @property
    def sums(self) -> dict[str, str]:
        """What SHA256SUMS says beside it: of every file, and of the manifest itself."""
        return {**self.files, MODEL_MANIFEST: hashlib.sha256(self.data).hexdigest()}


def write_sums(sums: Mapping[str, str]) -> bytes:
    """Returns the file that ``sha256sum -c`` reads."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items())).encode()


def read_sums(data: bytes) -> dict[str, str]:
    """SHA-256 by name, as ``sha256sum`` writes them."""
    lines = (line.partition("  ") for line in data.decode(errors="replace").split("\n") if line)
    return {name: sha256 for sha256, _, name in lines}


def name_fault(name: str, names: Collection[str]) -> str | None:
    """Returns what is wrong with the name of a published file, beside the others' ``names``."""
    fault = key_fault(name) or ("it holds a backslash" if "\\" in name else None)
    if fault or name in (MODEL_MANIFEST, SUMS) or name.startswith("."):
        return f"the name {name!r} of a file cannot be: {fault or 'it is kept for other use'}"
    if any(f"{folder}" in names for folder in PurePosixPath(name).parents):
        return f"the name {name!r} lies below another file"
    return None


def copy_model(store: Store, source: str, target: str, manifest: bytes, of: str) -> None:
    """Makes ``target`` the model of this manifest; what else lies in it is deleted. No file is sent here.

    Args:
        store: has both folders.
        source: folder of its files.
        target: folder to fill.
        manifest: what was published.
        of: whose it is, for messages.

    Raises:
        StorageFailed: reason "damaged" when what lies in ``source`` is not what was published; or the store's own.
    """
    published = Result.read(manifest, f"the manifest of {of} in {store.address}")
    store.delete(f"{target}/{MODEL_MANIFEST}", f"{target}/{SUMS}")  # without them the folder is no model
    for name, size in published.sizes.items():
        sha256 = store.copy(f"{source}/{name}", f"{target}/{name}")
        if sha256 != published.files[name] and (size or sha256):  # of an empty object it need not be known
            raise StorageFailed(
                f"{name} of {of} in {store.address} is not the file that was published: its SHA-256 differs from that "
                "in the manifest. Train again with fresh=True",
                reason="damaged",
            )
        reach("file published")
    keys = [entry.key for entry in store.list(f"{target}/")]
    store.delete(*(key for key in keys if key.removeprefix(f"{target}/") not in published.files))  # of the one before
    store.put(f"{target}/{SUMS}", write_sums(published.sums))
    reach("sums put")
    store.put(f"{target}/{MODEL_MANIFEST}", manifest)
    reach("manifest put")


def complete(store: Store, record: RunRecord) -> bool:
    """Completes the copy of the published model to the model folder; returns False if nothing is published yet.

    The folder belongs to the newest generation with a result: it is left alone, or copied again if that generation
    published meanwhile.

    Raises:
        StorageFailed: reason "damaged" if a file under the attempt is not the published one.
    """
    if not (result := find(store, record.keys.result)):
        return False
    manifest = find(store, f"{record.keys.model}/{MODEL_MANIFEST}")
    if not (manifest and manifest.data == result.data) and not _newer(store, record):
        _copy(store, record, result.data)
        while newer := _newer(store, record):  # its files may lie under those that were just copied
            record = newer
            _copy(store, record, store.get(record.keys.result).data)
    return True


def _newer(store: Store, record: RunRecord) -> RunRecord | None:
    """Returns the record of the newest generation with a result, if it is later than this one; else None."""
    generations = later_generations(store.names(record.keys.generations))
    later = (number for number in generations if number > record.generation)
    newest = max((number for number in later if store.list(RunKeys(record.name, number).result)), default=None)
    return replace(record, generation=newest) if newest else None


def _copy(store: Store, record: RunRecord, result: bytes) -> None:
    attempt = Result.read(result, f"{store.address}/{record.keys.result}").attempt
    source = record.keys.attempt(attempt).model
    copy_model(store, source, record.keys.model, result, f"attempt {attempt} of {record.name}")


def is_copied(store: Store, target: str, manifest: bytes) -> bool:
    """Returns whether ``target`` has the model of this manifest and no more: a writer that died may have come after it.

    Read are names, sizes and the recorded SHA-256, not the files. Raises StorageFailed.
    """
    published = Result.read(manifest, f"{target}/{MODEL_MANIFEST} in {store.address}")
    sizes = {entry.key.removeprefix(f"{target}/"): entry.size for entry in store.list(f"{target}/")}
    if {*sizes} != {*published.files, MODEL_MANIFEST, SUMS}:
        return False
    try:
        return store.get(f"{target}/{MODEL_MANIFEST}").data == manifest and all(
            sizes[name] == size and (not size or store.checksum(f"{target}/{name}") == published.files[name])
            for name, size in published.sizes.items()
        )
    except StorageFailed as failure:
        if failure.reason != "absent":  # another client copies at this moment
            raise
        return False
