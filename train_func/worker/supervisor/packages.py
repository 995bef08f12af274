"""Packages that travel with a run: its wheels, verified, unpacked in each pod, found by its ranks before all others.

No program installs them: a wheel is a zip file whose content lies as Python imports it.
"""

import hashlib
import os
import shutil
from pathlib import Path, PurePosixPath
from zipfile import BadZipFile, ZipFile

from train_func.errors import StorageFailed
from train_func.layout import wheel_key
from train_func.records import RunRecord
from train_func.storage import Store
from train_func.worker.inputs.cache import entry, remove

_LIBRARIES = ("purelib", "platlib")
_MODES = 0o755  # of a file, as far as its wheel sets them


def unpacked(store: Store, record: RunRecord, cache: Path, folder: Path) -> Path | None:
    """The folder with the packages of a run; None where it has none.

    Args:
        store: of the run.
        record: of the run.
        cache: keeps the wheels, for other pods too.
        folder: of this pod alone; what an earlier attempt in it has changed is gone.

    Raises:
        StorageFailed: the store is away, has no such wheel, or another one under its name.
    """
    if not record.wheels:
        return None
    remove(folder)
    folder.mkdir(parents=True)
    for name, sha256 in sorted(record.wheels.items()):
        wheel = folder / name
        _bring(store, name, sha256, cache, wheel)
        try:
            unpack(wheel, folder)
        except (BadZipFile, ValueError) as fault:
            raise _damaged(store, name, sha256, str(fault)) from None
        wheel.unlink()
    return folder


def _bring(store: Store, name: str, sha256: str, cache: Path, wheel: Path) -> None:
    """A copy of the wheel, verified after it was made: any pod may change the cache."""

    def download(path: Path) -> None:
        if store.download(wheel_key(name, sha256), path) != sha256:
            raise _damaged(store, name, sha256, "its content is another one")

    shutil.copyfile(entry(cache, f"packages/{sha256}", download), wheel)
    with wheel.open("rb") as copied:
        is_whole = hashlib.file_digest(copied, "sha256").hexdigest() == sha256
    if not is_whole:
        download(wheel)


def unpack(wheel: Path, folder: Path) -> None:
    """Brings the modules and data of a wheel to ``folder``; its programs and headers stay out.

    Raises:
        BadZipFile: it is no zip file, or damaged.
        ValueError: a file of it would lie outside of the folder.
    """
    with ZipFile(wheel) as files:
        for found in files.infolist():
            place = _place(PurePosixPath(found.filename))
            if place is None or found.is_dir():
                continue
            target = folder / place
            if ".." in place.parts or not target.is_relative_to(folder):
                raise ValueError(f"{found.filename!r} would lie outside of the folder")
            target.parent.mkdir(parents=True, exist_ok=True)
            with files.open(found) as content, target.open("wb") as written:
                shutil.copyfileobj(content, written)
            target.chmod(0o644 | (found.external_attr >> 16) & _MODES)


def put_first(folder: Path | None) -> None:
    """Lets processes that this one starts find what lies in the folder before what is installed."""
    if folder:
        others = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = f"{folder}{os.pathsep}{others}" if others else str(folder)


def _place(name: PurePosixPath) -> PurePosixPath | None:
    """Where a file of a wheel belongs, from the folder; None for what no import needs."""
    if not name.parts or not name.parts[0].endswith(".data"):
        return name
    kind, *rest = name.parts[1:]
    if kind in _LIBRARIES or kind == "data":
        return PurePosixPath(*rest) if rest else None
    return None


def _damaged(store: Store, name: str, sha256: str, why: str) -> StorageFailed:
    where = f"{store.address}/{wheel_key(name, sha256)}"
    return StorageFailed(f"{where}: {why}; remove it and submit again, which carries it anew", reason="damaged")
