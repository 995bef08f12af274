"""Finds what an address means: a file or folder of this machine, or an id of the Hub."""

import difflib
import hashlib
import importlib.util
import json
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from train_func.errors import Cause, InvalidInput, StorageFailed
from train_func.storage import Entry, Store, is_address, open_store, scheme_of, schemes
from train_func.text import listed
from train_func.wire.layout import INPUTS
from train_func.worker.inputs import fingerprint
from train_func.worker.inputs.cache import entry

AT_ONCE = 8  # files that are downloaded
NEAREST = 5  # names of what lies near
PACKAGE, EXAMPLE = "package://", "package://NAME/FOLDER"
DATA_SUFFIXES = (".csv", ".tsv", ".json", ".jsonl", ".parquet", ".conll")
_MISTAKEN = (*DATA_SUFFIXES, ".txt", ".xlsx", ".xls", ".gz", ".zip", ".arrow", ".safetensors", ".bin", ".pt")
_CARRIED = re.compile(rf"(?P<root>(?:.+/)?{INPUTS}/(?P<sha256>[0-9a-f]{{64}}))/[^/]+")
_CAUSES: dict[str, Cause] = {"model": "model", "dataset": "data"}


@dataclass(frozen=True)
class Wanted:
    """An address as a Run gives it, in the field it stands in; its text is how messages call what the Hub has there."""

    field: str
    address: str
    kind: Literal["model", "dataset"]
    revision: str = "main"
    columns: tuple[str, ...] = ()
    """What a data set has to hold; empty: it is only looked at, and read whole."""

    def __str__(self) -> str:
        at = "" if self.revision == "main" else f" (revision {self.revision})"
        field = f"{self.field}: " if self.field.startswith("inputs[") else ""
        return f"{field}{'model' if self.kind == 'model' else 'data set'} {self.address!r}{at}"

    @property
    def cause(self) -> Cause:
        """Whose fault it is when it cannot be had."""
        return _CAUSES[self.kind]

    def fault(self, text: str) -> InvalidInput:
        """The error of this field, in its usual form."""
        return InvalidInput(f"{self.field}={self.address!r}: {text}", cause=self.cause)


class HubUnreachable(StorageFailed):
    """The Hub gives no answer, and this machine lacks what it was asked for: in a worker an outage that passes.

    ``why``: in a few words. ``input_cause``: whose fault it is before a run is submitted.
    """

    def __init__(self, message: str, why: str, wanted: Wanted) -> None:
        super().__init__(message, reason="unreachable")
        self.why, self.input_cause = why, wanted.cause


@dataclass(frozen=True)
class LocalFiles:
    """What lies on this machine and has to be carried elsewhere before it can be read there."""

    path: Path
    files: Mapping[str, str]
    """SHA-256 of those that count, by their names from the folder that ``path`` lies in."""
    sha256: str

    @classmethod
    def found(cls, wanted: "Wanted", path: Path, parts: Mapping[str, str], sha256: str) -> "LocalFiles | None":
        """``parts`` are the files in ``path``, or one without a name for itself; None for the copy of a store's."""
        if is_in_store(wanted.address):
            return None
        files = {f"{path.name}/{name}" if name else path.name: part for name, part in parts.items()}
        return cls(path, files, sha256)

    def to_dict(self) -> dict[str, object]:
        """Plain JSON."""
        return {"path": str(self.path), "files": dict(self.files), "sha256": self.sha256}


def locate(wanted: Wanted, store: Store | None, cache: Path, take: Callable[[str], bool] = bool) -> Path | None:
    """The path that ``wanted`` means, None for an id of the Hub; what lies in a store is brought to the cache first.

    Args:
        store: used for addresses below its own; others are opened with this process's credentials.
        take: which files of a stored folder are expected, by their path in it.

    Raises:
        InvalidInput: no such package, file or object, with the names near to it.
        StorageFailed: the store is away or denies.
    """
    address = wanted.address
    if address.startswith(PACKAGE):
        name, _, inside = address.removeprefix(PACKAGE).partition("/")
        spec = importlib.util.find_spec(name) if name.isidentifier() else None  # which imports no package
        if spec is None or not spec.submodule_search_locations:
            raise wanted.fault(f"no package {name!r} is installed in this Python; install it, or name a folder")
        return _existing(wanted, Path(spec.submodule_search_locations[0]) / inside)
    if is_address(address):
        try:
            scheme = scheme_of(address)
        except StorageFailed:
            raise wanted.fault(f"allowed are {', '.join((EXAMPLE, *(known.example for known in schemes())))}") from None
        local = scheme.local_path(address)
        return _existing(wanted, local) if local else _copied(wanted, stored(wanted, store, take), cache)
    path = Path(address).expanduser()
    if path.exists():
        return path.absolute()
    if looks_like_path(address):
        return _existing(wanted, path.absolute())
    return None


def looks_like_path(address: str) -> bool:
    """Returns whether a person who wrote this meant a file or folder, there or not, and no id."""
    return address.startswith((".", "/", "~")) or is_address(address) or address.lower().endswith(_MISTAKEN)


def is_in_store(address: str) -> bool:
    """Returns whether what an address means has to be downloaded; False where no scheme fits."""
    if not is_address(address) or address.startswith(PACKAGE):
        return False
    try:
        return scheme_of(address).local_path(address) is None
    except StorageFailed:
        return False


def _existing(wanted: Wanted, path: Path) -> Path:
    if path.exists():
        return path
    parent = next(folder for folder in path.parents if folder.is_dir())
    here = sorted(found.name for found in parent.iterdir() if not found.name.startswith("."))
    nearest = near(path.relative_to(parent).parts[0], here)
    raise wanted.fault(f"no such file or folder: {path}; {parent} holds {nearest}")


def near(name: str, names: Sequence[str]) -> str:
    """Returns the ``names`` that are nearest to one that is missing, for messages."""
    return listed(difflib.get_close_matches(name, names, len(names), cutoff=0), NEAREST) if names else "nothing"


@dataclass(frozen=True)
class Stored:
    """What an address in a store names: an object, or those of a folder."""

    store: Store
    key: str
    items: tuple[Entry, ...]

    def name(self, item: Entry) -> str:
        """Its path in the folder; "" for a single object."""
        return item.key.removeprefix(self.key).removeprefix("/")

    def download(self, to: Path) -> dict[str, str]:
        """Writes the object, or the folder, to a path; SHA-256 (hex) of each by name."""

        def fetch(item: Entry) -> str:
            target = to / self.name(item)
            target.parent.mkdir(parents=True, exist_ok=True)
            return self.store.download(item.key, target)

        with ThreadPoolExecutor(AT_ONCE) as fetchers:
            sums = list(fetchers.map(fetch, self.items))
        return dict(zip(map(self.name, self.items), sums, strict=True))


def stored(wanted: Wanted, store: Store | None, take: Callable[[str], bool] = bool) -> Stored:
    """Returns what lies at an address in a store; the arguments are those of ``locate``.

    Raises:
        InvalidInput: nothing does.
        StorageFailed: the store is away or denies.
    """
    root, key = scheme_of(wanted.address).split(wanted.address)
    if store is not None and wanted.address.startswith(f"{store.address}/"):
        key = wanted.address.removeprefix(f"{store.address}/").rstrip("/")
    else:
        store = open_store(root)
    if not key:
        raise wanted.fault("names a whole store; the key of a file or folder in it is expected")
    found = [item for item in store.list(key) if item.key == key or item.key.startswith(f"{key}/")]
    if not found:
        folder = key.rpartition("/")[0]
        names = [f"{folder}/{name}" if folder else name for name in store.names(folder)]
        raise wanted.fault(f"{store.address} holds nothing under {key!r}; near it: {near(key, names)}")
    taken = [item for item in found if item.key == key or take(item.key.removeprefix(f"{key}/"))]
    return Stored(store, key, tuple(taken))


def _copied(wanted: Wanted, found: Stored, cache: Path) -> Path:
    """A copy in the cache, named by what the store lists, so that changed objects get one of their own."""
    listing = [(item.key, item.size, item.version) for item in found.items]
    state = hashlib.sha256(json.dumps([found.store.address, found.key, listing]).encode()).hexdigest()
    name = found.key.rpartition("/")[2]

    def download(part: Path) -> None:
        part.mkdir()
        check_carried(wanted, found, found.download(part / name))

    return entry(cache, f"stored/{state}", download) / name


def check_carried(wanted: Wanted, found: Stored, sums: Mapping[str, str]) -> None:
    """Refuses what lies below the SHA-256 of something else; ``sums``: of what was downloaded, by name."""
    address = _CARRIED.fullmatch(found.key)
    sha256 = fingerprint.of_named(sums)
    if address and address["sha256"] != sha256:
        raise wanted.fault(
            f"what lies there is not what was carried there: its SHA-256 is {sha256}; remove "
            f"{found.store.address}/{address['root']} and submit again, which carries it anew"
        )
