"""Brings the published model home: whole, verified, or not at all; nothing that was not fetched is ever touched."""

import contextlib
import functools
import hashlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from train_func.errors import InvalidInput, StorageFailed
from train_func.layout import MODEL_MANIFEST, SUMS, RunKeys, later_generations
from train_func.result import Result, read_sums, write_sums
from train_func.storage import Store, find

TRIES = 3  # a newer generation may be replacing the folder while it is read
STAGING = ".train_func-fetch-"  # begins the name of the folder that files arrive in
STALE_SECONDS = 24 * 3600  # what a fetch that was killed has left goes after so long


def fetch(store: Store, keys: RunKeys, to: Path) -> Path:
    """Downloads the published model of a run into the folder ``to`` and verifies every byte.

    A folder with an earlier fetched model gets the newer one file by file; files of other origin stay as they are.

    Raises:
        StorageFailed: no model is there (reason "absent"), or it is not what was published ("damaged").
        InvalidInput: ``to`` holds something else, or fetched files that were changed since; nothing was changed.
    """
    prefix = keys.model
    for attempt in range(1, TRIES + 1):
        manifest = store.get(f"{prefix}/{MODEL_MANIFEST}")
        try:
            new = Result.read(manifest.data, f"{prefix}/{MODEL_MANIFEST} in {store.address}")
            _check_is_result(store, keys, manifest.data)
            _fetch_once(store, prefix, to.resolve(), new)
            return to
        except StorageFailed as failure:
            moved = store.get(f"{prefix}/{MODEL_MANIFEST}").version != manifest.version
            if failure.reason not in ("damaged", "absent") or not moved or attempt == TRIES:
                raise
    raise AssertionError("the loop returns or raises")


def fetch_alone(store: Store, prefix: str, to: Path, published: bytes) -> Path:
    """The same of files that lie without their manifest under ``prefix``, where no other takes their place.

    ``published``: what was published of them.
    """
    new = Result.read(published, f"the result of {prefix} in {store.address}")
    _fetch_once(store, prefix, to.resolve(), new, are_alone=True)
    return to


def _check_is_result(store: Store, keys: RunKeys, manifest: bytes) -> None:
    """Raises StorageFailed unless it is the result of a generation of the run, which no copy of a model replaces.

    Files, sums and manifest of the model folder may have been replaced together, and then fit each other.
    """
    numbers = [1, *later_generations(store.names(keys.generations))]
    for number in reversed(numbers):
        result = find(store, RunKeys(keys.name, number).result)
        if result and result.data == manifest:
            return
    raise _not_published(
        f"{keys.model}/{MODEL_MANIFEST} in {store.address}",
        f"it is not the one that {keys.name} has published, as {RunKeys(keys.name).result} says",
    )


def _fetch_once(store: Store, prefix: str, to: Path, new: Result, *, are_alone: bool = False) -> None:
    """A new folder appears in one step; in one that is there the manifest is exchanged last.

    ``are_alone``: without manifest and sums beside them.
    """
    if not new.files:
        raise StorageFailed(f"the run under {prefix} in {store.address} has published no files", reason="absent")
    sha256_there = functools.cache(lambda name: sha256_of(to / name))  # a large file takes seconds
    old = _recognised(to, new, sha256_there) if to.exists() else None
    wanted = [name for name, sha256 in new.files.items() if sha256_there(name) != sha256]
    if old and not wanted and old.data == new.data and _sums_in(to) == new.sums:
        return
    with _staging(to) as staging:
        for name in wanted:
            _download(store, f"{prefix}/{name}", staging / name, new.files[name])
        sums = write_sums(new.sums) if are_alone else store.get(f"{prefix}/{SUMS}").data
        if read_sums(sums) != new.sums:
            raise _not_published(f"{prefix}/{SUMS} in {store.address}", "it does not belong to the manifest")
        (staging / SUMS).write_bytes(sums)
        (staging / MODEL_MANIFEST).write_bytes(new.data)
        if not to.exists():
            staging.chmod(0o755)
            staging.rename(to)
            return
        for name in wanted:
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            (staging / name).replace(to / name)
        for name in set(old.files) - set(new.files) if old else ():
            _remove(to, name)
        for name in (SUMS, MODEL_MANIFEST):
            (staging / name).replace(to / name)


def _recognised(to: Path, new: Result, sha256_there: Callable[[str], str | None]) -> Result | None:
    """What was fetched into the folder before, None when it is empty.

    Raises:
        InvalidInput: it holds anything else, or ``new`` cannot be put into it without loss.
    """
    if not to.is_dir():
        raise InvalidInput(f"to={str(to)!r}: a file is there; name a folder that is new, empty, or a fetched model")
    if not any(path for path in to.iterdir() if not path.name.startswith(STAGING)):
        return None
    other = InvalidInput(
        f"to={str(to)!r}: the folder holds files and no model that was fetched into it; nothing was changed: "
        "name a new or an empty folder with to=..."
    )
    try:
        old = Result.read((to / MODEL_MANIFEST).read_bytes(), str(to / MODEL_MANIFEST))
        known = _sums_in(to) in (old.sums, new.sums)
    except (OSError, StorageFailed):
        raise other from None
    if not known:
        raise other
    if changed := [name for name in {**old.files, **new.files} if not _replaceable(to, name, old, new, sha256_there)]:
        raise InvalidInput(
            f"to={str(to)!r}: not as they were fetched, so that they would be lost: {', '.join(sorted(changed)[:5])}; "
            "nothing was changed: move them away, or name another folder with to=..."
        )
    return old


def _replaceable(to: Path, name: str, old: Result, new: Result, sha256_there: Callable[[str], str | None]) -> bool:
    """Whether nothing is there, or just what one of the two models has under that name."""
    path = to / name
    above = [folder for folder in path.parents if folder != to and folder.is_relative_to(to)]
    if any(folder.is_symlink() or (folder.exists() and not folder.is_dir()) for folder in above):
        return False
    if not path.exists() and not path.is_symlink():
        return True
    known = {old.files.get(name), new.files.get(name)}
    return path.is_file() and not path.is_symlink() and sha256_there(name) in known


def as_fetched(folder: Path) -> dict[str, int]:
    """The sizes of the files in a folder that are there as they were fetched, by name; those it is known by last.

    It is empty where no model was fetched.
    """
    try:
        known = Result.read((folder / MODEL_MANIFEST).read_bytes(), str(folder / MODEL_MANIFEST))
        if folder.is_symlink() or _sums_in(folder) != known.sums:
            return {}
    except (OSError, StorageFailed):
        return {}
    sha256_there = functools.cache(lambda name: sha256_of(folder / name))
    files = [name for name in known.files if _replaceable(folder, name, known, known, sha256_there)]
    return {name: (folder / name).stat().st_size for name in (*files, SUMS, MODEL_MANIFEST) if (folder / name).exists()}


def remove_fetched(folder: Path) -> None:
    """Removes what ``as_fetched`` names, and the folder unless something else is in it."""
    for name in as_fetched(folder):
        _remove(folder, name)
    for left in folder.glob(f"{STAGING}*"):
        shutil.rmtree(left, ignore_errors=True)
    with contextlib.suppress(OSError):  # it holds other files, or is not there
        folder.rmdir()


def _sums_in(folder: Path) -> dict[str, str]:
    return read_sums((folder / SUMS).read_bytes())


@contextlib.contextmanager
def _staging(to: Path) -> Iterator[Path]:
    """A folder on the same disk: in ``to`` when that is there, else beside it; gone afterwards."""
    above = to if to.exists() else to.parent
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


def _download(store: Store, key: str, path: Path, wanted: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    found = store.download(key, path)
    if found != wanted:
        raise _not_published(f"{key} in {store.address}", f"SHA-256 {found}, expected {wanted}")


def _not_published(what: str, why: str) -> StorageFailed:
    return StorageFailed(
        f"{what} is not what was published: {why}; nothing was handed over; submit the run with fresh=True to publish "
        "it again",
        reason="damaged",
    )


def sha256_of(path: Path) -> str | None:
    """SHA-256 of a file, in hex; None when no file is there."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
