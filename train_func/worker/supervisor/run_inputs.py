"""Brings inputs and packages of a run to local paths, once for all ranks of a worker.

Inputs are brought while the worker's peers are watched. No installer runs for packages: a wheel is a zip file whose
content has the layout that Python imports. It is verified, unpacked in each pod, and found before installed packages.
"""

import hashlib
import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from zipfile import ZipFile

from train_func.errors import InvalidInput, StorageFailed
from train_func.inputs import claim_of, key_of, variable_of
from train_func.process.timeout import begin
from train_func.storage import Store
from train_func.wire.layout import wheel_key
from train_func.wire.records import RunRecord
from train_func.worker.environment import Environment
from train_func.worker.inputs.cache import entry, remove
from train_func.worker.inputs.named import bring, link
from train_func.worker.stop import Stop
from train_func.worker.store_wait import NOTICE_SECONDS, patient, patiently

STORE_SECONDS = 900.0  # for a store that is away while an input is brought


class RunInputs:
    """Brings the inputs of a run to one worker."""

    def __init__(self, environment: Environment, record: RunRecord, store: Store, stop: Stop) -> None:
        self._environment = environment
        self._record = record
        self._store = store
        self._stop = stop
        self._now = ""
        """The input that is on its way."""

    def bring(self, look: Callable[[], object]) -> dict[str, str]:
        """Returns the paths of all inputs, by the variables that hold them.

        ``look``: called while they are on their way; its errors end the wait.

        Raises:
            InvalidInput, StorageFailed: an input cannot be read, or has changed since it was submitted.
            Stopped: a signal has come.
        """
        if not self._record.run.inputs:
            return {}
        outcome = begin(self._all)  # a signal and the loss of a peer end the wait
        notice = time.monotonic() + NOTICE_SECONDS
        while not outcome.done():
            look()
            self._stop.pause(0.05)
            if time.monotonic() >= notice:
                notice = time.monotonic() + NOTICE_SECONDS
                print(f"still bringing input {self._now!r}")
        return {variable_of(name): str(path) for name, path in outcome.result().items()}

    def _all(self) -> dict[str, Path]:
        folder = self._environment.work_dir / "inputs"
        shutil.rmtree(folder, ignore_errors=True)  # what an earlier attempt in this pod has written there
        paths = {}
        faults: list[str] = []
        cache, claims = self._environment.cache_dir, self._environment.claims_dir
        for name, address in self._record.run.inputs.items():
            self._now = name
            begun = time.monotonic()
            expected, purpose = self._record.fingerprints[key_of(name)], f"bring input {name!r}"
            store = patient(self._store, self._stop, STORE_SECONDS, purpose)
            call = partial(bring, name, address, expected, store, cache, claims)
            try:
                path = patiently(call, self._stop, purpose=purpose)  # of another store than the run's, or the Hub
                if not claim_of(address):  # which is read-only, and may hold millions of files
                    path = link(path, folder, name, expected)
            except InvalidInput as refused:
                faults += refused.faults
            else:
                paths[name] = path
                print(f"input {name!r} is {path} ({time.monotonic() - begun:.1f} s)")
        if faults:
            raise InvalidInput(faults, cause="data")
        return paths


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
