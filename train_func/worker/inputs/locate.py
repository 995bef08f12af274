"""Finds what an address means: a file or folder of this machine, or an id of the Hub."""

import difflib
import hashlib
import importlib.util
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from train_func.errors import Cause, InvalidInput, StorageFailed
from train_func.layout import INPUTS
from train_func.storage import Entry, Store, is_address, open_store, scheme_of, schemes
from train_func.worker.inputs import fingerprint
from train_func.worker.inputs.cache import entry

PACKAGE, EXAMPLE = "package://", "package://NAME/FOLDER"
DATA_SUFFIXES = (".csv", ".tsv", ".json", ".jsonl", ".parquet")
_MISTAKEN = (*DATA_SUFFIXES, ".txt", ".xlsx", ".xls", ".gz", ".zip", ".arrow", ".safetensors", ".bin", ".pt")
_CARRIED = re.compile(rf"(?P<root>(?:.+/)?{INPUTS}/(?P<sha256>[0-9a-f]{{64}}))/[^/]+")
_CAUSES: dict[str, Cause] = {"model": "model", "dataset": "data"}


@dataclass(frozen=True)
class HubId:
    """What a Run names when it is no file, folder or address."""

    kind: Literal["model", "dataset"]
    name: str
    revision: str

    def __str__(self) -> str:
        at = "" if self.revision == "main" else f" (revision {self.revision})"
        return f"{'model' if self.kind == 'model' else 'data set'} {self.name!r}{at}"

    @property
    def cause(self) -> Cause:
        """Whose fault it is when it cannot be had."""
        return _CAUSES[self.kind]


@dataclass(frozen=True)
class Wanted:
    """An address as a Run gives it, in the field it stands in."""

    field: str
    address: str
    kind: Literal["model", "dataset"]
    revision: str = "main"
    columns: tuple[str, ...] = ()
    """What a data set has to hold; empty: it is only looked at."""

    def fault(self, text: str) -> InvalidInput:
        """The error of this field, in its usual form."""
        return InvalidInput(f"{self.field}={self.address!r}: {text}", cause=_CAUSES[self.kind])


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
        if _is_in_store(wanted.address):
            return None
        files = {f"{path.name}/{name}" if name else path.name: part for name, part in parts.items()}
        return cls(path, files, sha256)

    def to_dict(self) -> dict[str, object]:
        """Plain JSON."""
        return {"path": str(self.path), "files": dict(self.files), "sha256": self.sha256}


def locate(wanted: Wanted, store: Store | None, cache: Path, take: Callable[[str], bool] = bool) -> Path | HubId:
    """The path or the Hub id that ``wanted`` means; what lies in a store is brought to the cache first.

    Args:
        store: used for addresses below its own; others are opened with this process's credentials.
        take: which files of a stored folder are expected, by their path in it.

    Raises:
        InvalidInput: no such package, file or object, with the names near to it.
        StorageFailed: the store is away or denies.
    """
    address = wanted.address
    if address.startswith(PACKAGE):
        return _in_package(wanted)
    if is_address(address):
        try:
            scheme = scheme_of(address)
        except StorageFailed:
            raise wanted.fault(f"allowed are {', '.join((EXAMPLE, *(known.example for known in schemes())))}") from None
        local = scheme.local_path(address)
        return _existing(wanted, local) if local else _from_store(wanted, store, cache, take)
    path = Path(address).expanduser()
    if path.exists():
        return path.absolute()
    if looks_like_path(address):
        return _existing(wanted, path.absolute())
    return HubId(wanted.kind, address, wanted.revision)


def looks_like_path(address: str) -> bool:
    """Whether a person who wrote this meant a file or folder, there or not, and no id."""
    return address.startswith((".", "/", "~")) or is_address(address) or address.lower().endswith(_MISTAKEN)


def _is_in_store(address: str) -> bool:
    """Whether what an address means has to be downloaded."""
    if not is_address(address) or address.startswith(PACKAGE):
        return False
    return scheme_of(address).local_path(address) is None


def _existing(wanted: Wanted, path: Path) -> Path:
    if path.exists():
        return path
    parent = next(folder for folder in path.parents if folder.is_dir())
    here = sorted(found.name for found in parent.iterdir() if not found.name.startswith("."))
    missing = path.relative_to(parent).parts[0]
    raise wanted.fault(f"no such file or folder: {path}; {parent} holds {_listed(here)}{_near(missing, here)}")


def _in_package(wanted: Wanted) -> Path:
    """The folder or file inside an installed package, which is not imported."""
    name, _, inside = wanted.address.removeprefix(PACKAGE).partition("/")
    if not name.isidentifier():
        importable = "".join(letter if letter.isalnum() else "_" for letter in name) or "NAME"
        raise wanted.fault(
            f"{name!r} is no package; the name is expected that `import` takes, as {f'{PACKAGE}{importable}/...'!r}"
        )
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise wanted.fault(f"no package {name!r} is installed in this Python; install it, or name a folder")
    if ".." in Path(inside).parts:
        raise wanted.fault("'..' leads out of the package")
    return _existing(wanted, Path(spec.submodule_search_locations[0]) / inside)


def _from_store(wanted: Wanted, store: Store | None, cache: Path, take: Callable[[str], bool]) -> Path:
    """A copy in the cache of the object, or of the folder of objects, that the address names."""
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
        near = [f"{folder}/{name}" if folder else name for name in store.names(folder)]
        raise wanted.fault(f"{store.address} holds nothing under {key!r}; near it: {_listed(near)}{_near(key, near)}")
    wanted_items = [item for item in found if item.key == key or take(item.key.removeprefix(f"{key}/"))]
    return _copied(wanted, store, key, wanted_items, cache)


def _copied(wanted: Wanted, store: Store, key: str, items: list[Entry], cache: Path) -> Path:
    """Named by what the store lists, so that changed objects get a copy of their own; verified when it is made."""
    listing = [(item.key, item.size, item.version) for item in items]
    state = hashlib.sha256(json.dumps([store.address, key, listing]).encode()).hexdigest()

    def download(part: Path) -> None:
        part.mkdir()
        sums = {}
        for item in items:
            target = part / item.key.removeprefix(key.rpartition("/")[0]).lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            sums[item.key.removeprefix(key).removeprefix("/")] = store.download(item.key, target)
        _check_carried(wanted, store, key, sums)

    return entry(cache, f"stored/{state}", download) / key.rpartition("/")[2]


def _check_carried(wanted: Wanted, store: Store, key: str, sums: Mapping[str, str]) -> None:
    """Refuses what lies below the SHA-256 of something else; ``sums``: by path in the folder, "" for a single file."""
    address = _CARRIED.fullmatch(key)
    found = sums.get("") or fingerprint.of_parts(dict(sums))
    if address and address["sha256"] != found:
        raise wanted.fault(
            f"what lies there is not what was carried there: its SHA-256 is {found}; remove "
            f"{store.address}/{address['root']} and submit again, which carries it anew"
        )


def _listed(names: list[str]) -> str:
    if not names:
        return "nothing"
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")


def _near(name: str, names: list[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
