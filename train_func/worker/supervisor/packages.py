"""Packages that travel with a run: its wheels, verified, unpacked in each pod, found by its ranks before all others.

No program installs them: a wheel is a zip file whose content lies as Python imports it.
"""

import hashlib
import os
import shutil
from functools import partial
from pathlib import Path
from zipfile import ZipFile

from train_func.errors import StorageFailed
from train_func.layout import wheel_key
from train_func.records import RunRecord
from train_func.storage import Store
from train_func.worker.inputs.cache import entry, remove


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
            "submit again, which carries it anew",
            reason="damaged",
        )


def unpack(wheel: Path, folder: Path) -> None:
    """Brings the modules and data of a wheel to ``folder``; its programs and headers stay out."""
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
    """Lets processes that this one starts find what lies in the folder before what is installed."""
    if folder:
        paths = [str(folder), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
