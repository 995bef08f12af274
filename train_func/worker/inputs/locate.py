"""Finds the input of an address: a file or folder of this machine, an object in a store, or an id of the Hub."""

import contextlib
import difflib
import hashlib
import importlib.util
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from train_func.errors import Cause, InvalidInput, StorageFailed
from train_func.inputs import DATA_SUFFIXES
from train_func.storage import Entry, Store, is_address, open_store, scheme_of, schemes
from train_func.text import listed
from train_func.wire.exits import NO_SPACE
from train_func.wire.layout import INPUTS
from train_func.worker.inputs import fingerprint
from train_func.worker.inputs.cache import entry

AT_ONCE = 8  # files that are downloaded
NEAREST = 5  # names of what lies near
PACKAGE, EXAMPLE = "package://", "package://NAME/FOLDER"
_MISTAKEN = (*DATA_SUFFIXES, ".txt", ".xlsx", ".xls", ".gz", ".zip", ".arrow", ".safetensors", ".bin", ".pt")
_CARRIED = re.compile(rf"(?P<root>(?:.+/)?{INPUTS}/(?P<sha256>[0-9a-f]{{64}}))/[^/]+")
_EMPTY = hashlib.sha256().hexdigest()  # of no bytes
_CAUSES: dict[str, Cause] = {"model": "model", "dataset": "data"}


@dataclass(frozen=True)
class Reference:
    """A field of a Run and the address in it; ``str`` of it names the model or data set in messages."""

    field: str
    address: str
    kind: Literal["model", "dataset"]
    revision: str = "main"
    columns: tuple[str, ...] = ()
    """Columns that a data set must have; empty: all of its columns are read."""

    def __str__(self) -> str:
        at = "" if self.revision == "main" else f" (revision {self.revision})"
        field = f"{self.field}: " if self.field.startswith("inputs[") else ""
        return f"{field}{'model' if self.kind == 'model' else 'data set'} {self.address!r}{at}"

    @property
    def cause(self) -> Cause:
        """The cause of the error if the input cannot be read."""
        return _CAUSES[self.kind]

    def fault(self, text: str) -> InvalidInput:
        """Returns the error of this field, which begins with its name and value."""
        return InvalidInput(f"{self.field}={self.address!r}: {text}", cause=self.cause)

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Turns an OSError of the block, which reads files of this machine, into a fault of this field."""
        try:
            yield
        except OSError as error:
            if error.errno in NO_SPACE:
                raise
            raise self.fault(f"cannot be read: {error}") from None


class HubUnreachable(StorageFailed):
    """The Hub does not answer, and this machine has no copy of the input; in a worker it is a temporary outage.

    ``why``: in a few words. ``input_cause``: the cause of the error before a run is submitted.
    """

    def __init__(self, message: str, why: str, reference: Reference) -> None:
        super().__init__(message, reason="unreachable")
        self.why, self.input_cause = why, reference.cause


@dataclass(frozen=True)
class LocalFiles:
    """Files of this machine that a cluster can read only after an upload."""

    path: Path
    files: Mapping[str, str]
    """SHA-256 of each file that counts, by its path from the parent folder of ``path``."""
    sha256: str

    @classmethod
    def of_path(cls, reference: "Reference", path: Path, parts: Mapping[str, str]) -> "LocalFiles | None":
        """Returns the files, or None for those of a store. ``parts``: SHA-256 by path in ``path``, "" for itself."""
        if is_in_store(reference.address):
            return None
        files = {f"{path.name}/{name}" if name else path.name: part for name, part in parts.items()}
        return cls(path, files, fingerprint.of_named(parts))

    def check_unchanged(self, cache: Path) -> None:
        """Raises InvalidInput if a file is not what it was when its SHA-256 was taken."""
        for name, sha256 in self.files.items():
            path = self.path.parent / name
            if not path.exists() or fingerprint.of_file(path, cache) != sha256:
                raise changed_while_read([path])

    def to_dict(self) -> dict[str, object]:
        """Plain JSON."""
        return {"path": str(self.path), "files": dict(self.files), "sha256": self.sha256}


def changed_while_read(paths: Sequence[object]) -> InvalidInput:
    """Returns the error of files to which another program has written."""
    return InvalidInput(
        f"{listed(paths, NEAREST)} changed while it was read, so it is not what names the run; submit again once no "
        "program writes to it",
        cause="data",
    )


def locate(reference: Reference, store: Store | None, cache: Path) -> Path | None:
    """Returns the path that ``reference`` means, None for an id of the Hub; downloads an input in a store to the cache.

    Args:
        store: used for addresses below its own; others are opened with this process's credentials.

    Raises:
        InvalidInput: there is no such package, file or object; the message lists similar names.
        StorageFailed: the store is away or denies.
    """
    address = reference.address
    if address.startswith(PACKAGE):
        name, _, inside = address.removeprefix(PACKAGE).partition("/")
        spec = importlib.util.find_spec(name) if name.isidentifier() else None  # which imports no package
        if spec is None or not spec.submodule_search_locations:
            raise reference.fault(f"no package {name!r} is installed in this Python; install it, or name a folder")
        return _existing(reference, Path(spec.submodule_search_locations[0]) / inside)
    if is_address(address):
        try:
            scheme = scheme_of(address)
        except StorageFailed:
            raise reference.fault(
                f"allowed are {', '.join((EXAMPLE, *(known.example for known in schemes())))}"
            ) from None
        local = scheme.local_path(address)
        return _existing(reference, local) if local else copied(reference, stored(reference, store), cache)
    try:
        path = Path(address).expanduser()
        if path.exists():
            return path.absolute()
    except (OSError, RuntimeError) as error:  # a folder may not be searched, or there is no such user
        raise reference.fault(f"cannot be read ({error}); correct the path, or the rights to its folders") from None
    if looks_like_path(address):
        return _existing(reference, path.absolute())
    return None


def looks_like_path(address: str) -> bool:
    """Returns whether the address is written like a path rather than an id; the path may not exist."""
    return address.startswith((".", "/", "~")) or is_address(address) or address.lower().endswith(_MISTAKEN)


def is_in_store(address: str) -> bool:
    """Returns whether the input has to be downloaded from a store; False if no scheme matches."""
    if not is_address(address) or address.startswith(PACKAGE):
        return False
    try:
        return scheme_of(address).local_path(address) is None
    except StorageFailed:
        return False


def _existing(reference: Reference, path: Path) -> Path:
    with reference.reading():
        if path.exists():
            return path
        parent = next(folder for folder in path.parents if folder.is_dir())
        here = sorted(sibling.name for sibling in parent.iterdir() if not sibling.name.startswith("."))
    nearest = near(path.relative_to(parent).parts[0], here)
    raise reference.fault(f"no such file or folder: {path}; {parent} holds {nearest}")


def near(name: str, names: Sequence[str]) -> str:
    """Returns the ``names`` that are most similar to a missing one, for messages."""
    return listed(difflib.get_close_matches(name, names, len(names), cutoff=0), NEAREST) if names else "nothing"


@dataclass(frozen=True)
class Stored:
    """The object, or the objects of a folder, that an address in a store names."""

    store: Store
    key: str
    items: tuple[Entry, ...]
    left: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of the files of the folder that are not downloaded, by name."""

    def name(self, item: Entry) -> str:
        """Returns the path of an object in the folder; "" for a single object."""
        return item.key.removeprefix(self.key).removeprefix("/")

    def sums(self, take: Callable[[str], bool] = lambda name: True) -> dict[str, str]:
        """Returns the SHA-256 (hex) that the store has recorded, by name; a file without one is left out.

        ``take``: which files are asked for, by name.
        """
        items = [item for item in self.items if take(self.name(item))]
        sums = {self.name(item): self.store.checksum(item.key) if item.size else _EMPTY for item in items}
        return {name: sha256 for name, sha256 in sums.items() if sha256}

    def without(self, sums: Mapping[str, str]) -> "Stored":
        """Returns the same folder, of which the files in ``sums`` are not downloaded."""
        return replace(self, items=tuple(item for item in self.items if self.name(item) not in sums), left=sums)

    def download(self, to: Path) -> dict[str, str]:
        """Writes the object or the folder to a path; returns the SHA-256 (hex) of each file by name."""

        def fetch(item: Entry) -> str:
            target = to / self.name(item)
            target.parent.mkdir(parents=True, exist_ok=True)
            return self.store.download(item.key, target)

        with ThreadPoolExecutor(AT_ONCE) as fetchers:
            sums = list(fetchers.map(fetch, self.items))
        return {**self.left, **dict(zip(map(self.name, self.items), sums, strict=True))}


def stored(reference: Reference, store: Store | None, take: Callable[[str], bool] = bool) -> Stored:
    """Returns the objects at an address in a store.

    Args:
        store: as ``locate`` takes it.
        take: which files of a folder are expected, by their path in it.

    Raises:
        InvalidInput: there is none.
        StorageFailed: the store is away or denies.
    """
    root, key = scheme_of(reference.address).split(reference.address)
    if store is not None and reference.address.startswith(f"{store.address}/"):
        key = reference.address.removeprefix(f"{store.address}/").rstrip("/")
    else:
        store = open_store(root)
    if not key:
        raise reference.fault("names a whole store; the key of a file or folder in it is expected")
    items = [item for item in store.list(key) if item.key == key or item.key.startswith(f"{key}/")]
    if not items:
        folder = key.rpartition("/")[0]
        names = [f"{folder}/{name}" if folder else name for name in store.names(folder)]
        raise reference.fault(f"{store.address} holds nothing under {key!r}; near it: {near(key, names)}")
    taken = [item for item in items if item.key == key or take(item.key.removeprefix(f"{key}/"))]
    if not taken:
        raise reference.fault(
            f"{store.address} holds no file of a {reference.kind} directly in {key!r}, only "
            f"{listed(store.names(key), NEAREST)}; name the folder that has them"
        )
    return Stored(store, key, tuple(taken))


def copied(reference: Reference, source: Stored, cache: Path) -> Path:
    """Returns a copy in the cache; its key is the store's listing, so that changed objects get another copy."""
    listing = [(item.key, item.size, item.version) for item in source.items]
    state = hashlib.sha256(json.dumps([source.store.address, source.key, listing]).encode()).hexdigest()
    name = source.key.rpartition("/")[2]

    def download(part: Path) -> None:
        (part / name if source.left else part).mkdir(parents=True)
        check_carried(reference, source, source.download(part / name))

    return entry(cache, f"stored/{state}", download) / name


def check_carried(reference: Reference, source: Stored, sums: Mapping[str, str]) -> None:
    """Refuses an upload whose content is not that of the SHA-256 in its key; ``sums``: SHA-256 by name."""
    address = _CARRIED.fullmatch(source.key)
    sha256 = fingerprint.of_named(sums)
    if address and address["sha256"] != sha256:
        raise reference.fault(
            f"its content has changed since it was uploaded: its SHA-256 is {sha256}; remove "
            f"{source.store.address}/{address['root']} and submit again, which uploads it again"
        )
