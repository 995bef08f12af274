"""Files of a disk: there whole or not at all, also after a crash or a power cut, and what its errors mean."""

import contextlib
import errno
import hashlib
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from train_func.errors import StorageFailed, StorageReason
from train_func.failpoint import reach
from train_func.storage.store import ignore

CHUNK = 1 << 20  # bytes
_REASONS: dict[int, tuple[StorageReason, str]] = {
    errno.ENOENT: ("absent", "the path is not there (any more)"),
    errno.EACCES: ("denied", "give this user the permission, or choose a folder of its own"),
    errno.EPERM: ("denied", "give this user the permission, or choose a folder of its own"),
    errno.EROFS: ("denied", "the file system is read-only; choose a folder on a writable one"),
    errno.ENOSPC: ("full", "the disk is full; free space, or choose a folder on another disk"),
    errno.EDQUOT: ("full", "the disk quota is used up; free space, or choose a folder on another disk"),
    errno.EFBIG: ("full", "the file is larger than this process or file system may write; raise that limit"),
    errno.ENOTDIR: ("address", "a name on the way is a file, so nothing can lie below it; choose another key"),
    errno.EISDIR: ("address", "other objects lie below this name; choose another key"),
    errno.EEXIST: ("address", "a name on the way is a file, so nothing can lie below it; choose another key"),
    errno.ENAMETOOLONG: ("address", "the path is too long for this file system; choose a shorter one"),
    errno.ENOLCK: ("denied", "this file system cannot lock files (flock); choose a folder on one that can"),
    errno.ENOTSUP: ("denied", "this file system cannot link or lock files; choose a folder on one that can"),
}


@contextlib.contextmanager
def temporary(folder: Path, taken: Path | None = None) -> Iterator[BinaryIO]:
    """A new file in ``folder``, to be written, settled and placed; removed if it was not.

    Instead of a new one a link to the file ``taken``, where the file system allows it.
    """
    path = folder / f".{secrets.token_hex(8)}.part"
    with path.open("rb") if taken and _is_linked(taken, path) else path.open("xb+") as file:
        try:
            yield file
        finally:
            path.unlink(missing_ok=True)


def _is_linked(source: Path, target: Path) -> bool:
    try:
        os.link(source, target)
    except OSError:  # on another file system, or on one without links; a copy says what else is wrong
        return False
    return True


def settle(file: BinaryIO) -> None:
    """Writes the bytes of ``file`` to the disk; the slow step, to be done before any lock is taken."""
    file.flush()
    reach("file written")
    os.fsync(file.fileno())


def place(file: BinaryIO, target: Path, *, exclusive: bool = False) -> None:
    """Makes a settled ``file`` appear at ``target``, for good when this returns.

    Raises FileExistsError with ``exclusive`` when something is there; the choice is one step for all processes.
    """
    if exclusive:
        os.link(file.name, target)
    else:
        Path(file.name).replace(target)
    reach("file placed")
    sync_folder(target.parent)


@contextlib.contextmanager
def replacing(path: Path, asked: str) -> Iterator[BinaryIO]:
    """A new file that takes the place of ``path`` when the block has ended well; faults as ``disk_faults``."""
    with disk_faults(asked):
        make_folders(path.parent)
        with temporary(path.parent) as file:
            yield file
            settle(file)
            place(file, path)


def make_folders(folder: Path) -> None:
    """``mkdir -p``, on the disk before this returns."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Writes the folder's entries, not its files' bytes, to the disk; one that was removed meanwhile has none."""
    with contextlib.suppress(FileNotFoundError):
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def copy(source: BinaryIO, target: BinaryIO, copied: Callable[[int], object] = ignore) -> str:
    """Copies everything and returns its SHA-256 (hex); ``copied`` is told how many bytes each piece has.

    Where ``target`` is a link to ``source``, it is read only.
    """
    digest = hashlib.sha256()
    is_there = os.path.sameopenfile(source.fileno(), target.fileno())
    while chunk := source.read(CHUNK):
        if not is_there:
            target.write(chunk)
        reach("chunk written")
        digest.update(chunk)
        copied(len(chunk))
    return digest.hexdigest()


@contextlib.contextmanager
def disk_faults(asked: str) -> Iterator[None]:
    """Turns an OSError of the block into StorageFailed; ``asked`` says what was wanted: "put of 'a/b' in file:///c"."""
    try:
        yield
    except StorageFailed:  # an OSError too, and already told
        raise
    except OSError as error:
        number = error.errno or 0
        reason, remedy = _REASONS.get(number, ("unreachable", "the disk or its server does not answer as it should"))
        raise StorageFailed(f"{asked}: {error}; {remedy}", reason=reason) from error


def open_source(path: Path, asked: str) -> BinaryIO:
    """The local file to be stored, open for reading; raises StorageFailed (reason "absent") when it is none."""
    with disk_faults(asked):
        if path.is_dir():
            raise StorageFailed(f"{asked}: {path} is a folder; hand over its files one by one", reason="absent")
        return path.open("rb")
