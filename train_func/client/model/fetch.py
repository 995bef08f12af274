"""Brings the published model home: whole, verified, or not at all; nothing that was not fetched is ever touched."""

import contextlib
import functools
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from train_func.errors import InvalidInput, StorageFailed
from train_func.published_model import object_in
from train_func.storage import Store
from train_func.wire.layout import MODEL_MANIFEST, SUMS, RunKeys, home
from train_func.wire.result import Result, read_sums, write_sums

STAGING = ".train_func-fetch-"  # begins the name of the folder that files arrive in
EXCHANGE = f"{STAGING}exchange"  # a folder that is there while files are renamed
MERGED = "merged.json"  # in a folder with merged adapters: the adapters that it is made of, and its files
EXCHANGE_SECONDS = 60.0  # longest that files are renamed in one folder
LOOK_SECONDS = 0.05
STALE_SECONDS = 24 * 3600  # what a fetch that was killed has left goes after so long


def models_folder() -> Path:
    """Returns the folder of this person's fetched models, a folder for each run or name."""
    return home(os.environ) / "models"


def fetched_folders(name: str) -> tuple[Path, Path]:
    """Returns the folders of this person for the model of a run, or of a name, and for its merged adapters."""
    folder = models_folder() / name
    return folder, merged_folder(folder)


def merged_folder(adapters: Path) -> Path:
    """Returns the folder of the whole model of fetched adapters, unless another one is named; no model has its name."""
    return adapters.with_name(f"{adapters.name}.merged")


def fetch(store: Store, keys: RunKeys, to: Path) -> Path:
    """Downloads what a generation of a run has published into the folder ``to`` and verifies every byte.

    It is read where the attempt that won has written it, which is never changed. A new folder appears in one step. One
    with an earlier fetched model gets the newer one file by file, the manifest last; files of other origin stay as they
    are. Of processes that fetch into one folder at once each brings its model whole, and the last one stays.

    Raises:
        StorageFailed: no model is there (reason "absent"), or it is not what was published ("damaged").
        InvalidInput: ``to`` holds something else, or fetched files that were changed since; nothing was changed. Or it
            cannot be written.
    """
    new = Result.read(store.get(keys.result).data, f"{keys.result} in {store.address}")
    if not new.files:
        raise StorageFailed(f"the run {keys.name} in {store.address} has published no files", reason="absent")
    try:
        _bring(store, keys, new, to.resolve())
    except StorageFailed:  # an OSError too
        raise
    except OSError as error:
        raise InvalidInput(
            f"to={str(to)!r}: the model cannot be written there: {error}; make room, or have this user given the "
            "permission, and fetch it again; or name another folder with to=...",
            cause="storage",
        ) from error
    return to


def _bring(store: Store, keys: RunKeys, new: Result, to: Path) -> None:
    """Makes the folder ``to`` that model; begins anew where another process has fetched a model into it meanwhile."""
    is_done = False
    while not is_done:
        _await_exchange(to)  # else files of two models would be seen
        manifest_before = _manifest_in(to)
        sha256_there = functools.cache(lambda name: sha256_of(to / name))  # a large file takes seconds
        old = _recognise(to, new, sha256_there) if to.exists() else None
        lacking = [name for name, sha256 in new.files.items() if sha256_there(name) != sha256]
        if old and not lacking and old.data == new.data and _sums_in(to) == new.sums:
            return
        with staging_folder(to if to.exists() else to.parent) as staging:
            _download(store, keys, new, lacking, staging)
            if to.exists():
                with _exchange(to):
                    is_done = _manifest_in(to) == manifest_before
                    if is_done:
                        _replace(to, staging, lacking, set(old.files) - set(new.files) if old else set())
                continue
            staging.chmod(0o755)
            try:
                staging.rename(to)
                is_done = True
            except OSError:
                if not to.exists():
                    raise


def _download(store: Store, keys: RunKeys, new: Result, names: Iterable[str], staging: Path) -> None:
    """Downloads and verifies these files of a model, and writes what it is known by."""
    for name in names:
        (staging / name).parent.mkdir(parents=True, exist_ok=True)
        key = f"{keys.attempt(new.attempt).model}/{name}"
        if (sha256 := store.download(key, staging / name)) != new.files[name]:
            raise StorageFailed(
                f"{key} in {store.address} is not what was published: SHA-256 {sha256}, expected {new.files[name]}; "
                "nothing was handed over; submit the run with fresh=True to publish it again",
                reason="damaged",
            )
    (staging / SUMS).write_bytes(write_sums(new.sums))
    (staging / MODEL_MANIFEST).write_bytes(new.data)


def _replace(to: Path, staging: Path, names: Iterable[str], gone: Iterable[str]) -> None:
    """Puts the files of the new model in the place of those of the one before, the manifest last."""
    for name in names:
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        (staging / name).replace(to / name)
    for name in gone:
        _remove(to, name)
    for name in (SUMS, MODEL_MANIFEST):
        (staging / name).replace(to / name)


@contextlib.contextmanager
def _exchange(to: Path) -> Iterator[None]:
    """Lets no other process exchange files in the folder, in its body."""
    mark = to / EXCHANGE
    while True:
        _await_exchange(to)
        try:
            mark.mkdir()
            break
        except FileExistsError:
            continue
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):  # this process was stopped for long
            mark.rmdir()


def _await_exchange(to: Path) -> None:
    """Waits until no process exchanges files in the folder; one that takes too long was killed."""
    mark = to / EXCHANGE
    with contextlib.suppress(FileNotFoundError):
        while time.time() - mark.stat().st_mtime < EXCHANGE_SECONDS:
            time.sleep(LOOK_SECONDS)
        mark.rmdir()


def _recognise(to: Path, new: Result, sha256_there: Callable[[str], str | None]) -> Result | None:
    """Returns what was fetched into the folder before, None when it is empty.

    Raises:
        InvalidInput: it holds anything else, or ``new`` cannot be put into it without loss.
    """
    if not to.is_dir():
        raise InvalidInput(f"to={str(to)!r}: a file is there; name a folder that is new, empty, or a fetched model")
    if not any(path for path in to.iterdir() if not path.name.startswith(STAGING)):
        return None
    old = _fetched_before(to)
    if old is None or _sums_in(to) not in (old.sums, new.sums):
        raise InvalidInput(
            f"to={str(to)!r}: the folder holds files and no model that was fetched into it; nothing was changed: "
            "name a new or an empty folder with to=..."
        )
    changed = [
        name
        for name in {**old.files, **new.files}
        if (to / name).exists() and (sha256_there(name) or "") not in (old.files.get(name), new.files.get(name))
    ]
    if changed:
        raise InvalidInput(
            f"to={str(to)!r}: not as they were fetched, so that they would be lost: {', '.join(sorted(changed)[:5])}; "
            "nothing was changed: move them away, or name another folder with to=..."
        )
    return old


def _fetched_before(folder: Path) -> Result | None:
    try:
        return Result.read((folder / MODEL_MANIFEST).read_bytes(), str(folder / MODEL_MANIFEST))
    except (OSError, StorageFailed):
        return None


def as_fetched(folder: Path) -> dict[str, int]:
    """Returns the sizes of the files in a folder that are as they were fetched or merged, by name; its records last.

    The result is empty where no model was fetched.
    """
    if folder.is_symlink():
        return {}
    known, merged = _fetched_before(folder), object_in(folder / MERGED).get("files")
    if known and _sums_in(folder) == known.sums:
        sums, records = known.files, [SUMS, MODEL_MANIFEST]
    elif isinstance(merged, dict):
        sums, records = merged, [MERGED]
    else:
        return {}
    files = [name for name, sha256 in sums.items() if sha256_of(folder / name) == sha256]
    return {name: (folder / name).stat().st_size for name in (*files, *records)}


def remove_fetched(folder: Path) -> None:
    """Removes what ``as_fetched`` names, and the folder unless something else is in it."""
    for name in as_fetched(folder):
        _remove(folder, name)
    for left in folder.glob(f"{STAGING}*"):
        shutil.rmtree(left, ignore_errors=True)
    with contextlib.suppress(OSError):  # it holds other files, or is not there
        folder.rmdir()


def _manifest_in(folder: Path) -> bytes:
    """Returns which model was fetched into a folder; empty where none was."""
    return (folder / MODEL_MANIFEST).read_bytes() if (folder / MODEL_MANIFEST).is_file() else b""


def _sums_in(folder: Path) -> dict[str, str]:
    return read_sums((folder / SUMS).read_bytes()) if (folder / SUMS).is_file() else {}


@contextlib.contextmanager
def staging_folder(above: Path) -> Iterator[Path]:
    """Yields a folder in ``above``, gone afterwards; removes those that killed processes have left there."""
    above.mkdir(parents=True, exist_ok=True)
    for left in above.glob(f"{STAGING}*"):
        if time.time() - left.stat().st_mtime > STALE_SECONDS:
            shutil.rmtree(left, ignore_errors=True)
    staging = Path(tempfile.mkdtemp(prefix=STAGING, dir=above))
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _remove(folder: Path, name: str) -> None:
    """Removes a file, and the folders that it empties."""
    (folder / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # the first that is not empty ends it
        for parent in Path(name).parents[:-1]:
            (folder / parent).rmdir()


def sha256_of(path: Path) -> str | None:
    """SHA-256 of a file, in hex; None when no file is there."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
