"""The packages of a worker: those of its image, which submit reads in the store, and those that a run brings as wheels.

No installer runs: a wheel is a zip file whose content has the layout that Python imports. It is verified, unpacked in
each pod, and found before installed packages.
"""

import contextlib
import hashlib
import os
import shutil
from functools import partial
from pathlib import Path
from zipfile import ZipFile

from train_func.errors import StorageFailed
from train_func.storage import Store, find
from train_func.wire.layout import PACKAGES, image_key, wheel_key
from train_func.wire.records import RunRecord
from train_func.worker.inputs.cache import entry, remove


def share_packages(store: Store, image: str) -> None:
    """Puts the list of packages of this worker's image into the store, where submit reads it."""
    with contextlib.suppress(OSError, StorageFailed):  # this machine has none, and a run needs none
        packages, key = PACKAGES.read_bytes(), image_key(image)
        entry = find(store, key)
        if image and (entry is None or entry.data != packages):
            store.put(key, packages)


def unpack_packages(store: Store, record: RunRecord, cache: Path, folder: Path) -> Path | None:
    """Unpacks the packages of a run into a folder, and returns it; None if the run has none.

    Args:
        store: the store of the run.
        record: the record of the run.
        cache: holds the wheels, also for other pods.
        folder: a folder of this pod alone; it is emptied first, in case an earlier attempt has changed it.

    Raises:
        StorageFailed: the store is away, has no such wheel, or has another file under its name.
    """
    if not record.wheels:
        return None
    remove(folder)
    folder.mkdir(parents=True)
    for name, sha256 in sorted(record.wheels.items()):
        wheel = folder / name
        download = partial(_download, store, name, sha256)
        shutil.copyfile(entry(cache, f"packages/{sha256}", download), wheel)
        with wheel.open("rb") as copy:  # verified after it was made: any pod may change the cache
            is_whole = hashlib.file_digest(copy, "sha256").hexdigest() == sha256
        if not is_whole:
            download(wheel)
        unpack(wheel, folder)
        wheel.unlink()
    return folder


def _download(store: Store, name: str, sha256: str, path: Path) -> None:
    if store.download(wheel_key(name, sha256), path) != sha256:
        raise StorageFailed(
            f"{store.address}/{wheel_key(name, sha256)} is another file than the one that was submitted; remove it and "
            "submit again, which uploads it again",
            reason="damaged",
        )


def unpack(wheel: Path, folder: Path) -> None:
    """Unpacks the modules and data of a wheel into ``folder``, without its programs and headers."""
    with ZipFile(wheel) as archive:
        for member in archive.infolist():
            path = Path(archive.extract(member, folder))  # which leaves out what would lead out of the folder
            if path.is_file():
                path.chmod(0o644 | (member.external_attr >> 16) & 0o755)
    for data in folder.glob("*.data"):
        for kind in ("purelib", "platlib", "data"):
            if (data / kind).is_dir():
                shutil.copytree(data / kind, folder, dirs_exist_ok=True)
        shutil.rmtree(data)


def put_first(folder: Path | None) -> None:
    """Makes child processes import from the folder before the installed packages."""
    if folder:
        paths = [str(folder), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
