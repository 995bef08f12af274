"""Files of a disk: whole or absent, also after a crash or a power cut; and the remedies of its errors."""

import contextlib
import errno
import hashlib
import os
import secrets
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from train_func.errors import StorageFailed, StorageReason
from train_func.process.failpoint import reach
from train_func.storage.store import ignore

CHUNK = 1 << 20  # bytes
_AWAY: tuple[StorageReason, str] = "unreachable", "the disk or its server does not answer as it should"
_REASONS: tuple[tuple[StorageReason, str, set[int]], ...] = (
    ("absent", "the path is not there (any more)", {errno.ENOENT}),
    (
        "denied",
        "give this user the permission, or choose another folder",
        {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOLCK, errno.ENOTSUP},
    ),
    ("full", "free space or raise that limit, or choose another disk", {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}),
    (
        "address",
        "choose another key: no object lies below another one",
        {errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG},
    ),
)


@contextlib.contextmanager
def disk_faults(action: str) -> Iterator[None]:
    """Turns an OSError of the block into StorageFailed; ``action``: its words, such as "put of 'a/b' in file:///c"."""
    try:
        yield
    except StorageFailed:  # an OSError too
        raise
    except OSError as error:
        rows = ((reason, remedy) for reason, remedy, numbers in _REASONS if error.errno in numbers)
        reason, remedy = next(rows, _AWAY)
        raise StorageFailed(f"{action}: {error}; {remedy}", reason=reason) from error


def state_of(status: os.stat_result) -> list[int]:
    """Returns what changes with a file's bytes; of these only the third cannot be set."""
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def open_source(path: Path, action: str) -> BufferedReader:
    """Opens the local file to store; raises StorageFailed (reason "absent") if it is no file."""
    with disk_faults(action):
        if path.is_dir():
            raise StorageFailed(f"{action}: {path} is a folder; hand over its files one by one", reason="absent")
        return path.open("rb")


@contextlib.contextmanager
def temporary(folder: Path, link_to: Path | None = None) -> Iterator[BinaryIO]:
    """Yields a new file in ``folder``, to be written, settled and placed; removes it if it was not placed.

    The file is a link to the file ``link_to`` if the file system allows that.
    """
    path = folder / f".{secrets.token_hex(8)}.part"
    mode = "xb+"
    if link_to:
        with contextlib.suppress(OSError):  # another file system, or one without links
            os.link(link_to, path)
            mode = "rb"
    with path.open(mode) as file:
        try:
            yield file  # type: ignore[misc]
        finally:
            path.unlink(missing_ok=True)


def settle(file: BinaryIO) -> None:
    """Writes the bytes of ``file`` to the disk; it is slow, and called before any lock is taken."""
    file.flush()
    reach("file written")
    os.fsync(file.fileno())


def place(file: BinaryIO, target: Path) -> None:
    """Renames a settled ``file`` to ``target``; this lasts once the folder is synced too."""
    Path(file.name).replace(target)
    reach("file placed")


@contextlib.contextmanager
def replacing(path: Path, action: str) -> Iterator[BinaryIO]:
    """Yields a new file that replaces ``path`` if the block ends well; raises as ``disk_faults``."""
    with disk_faults(action):
        make_folders(path.parent)
        with temporary(path.parent) as file:
            yield file
            settle(file)
            place(file, path)
        sync_folder(path.parent)


def make_folders(folder: Path) -> None:
    """Does ``mkdir -p``, and writes it to the disk."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Writes the folder's entries, not the bytes of its files, to the disk; ignores a folder that was removed."""
    with contextlib.suppress(FileNotFoundError):
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def copy(source: BinaryIO, target: BinaryIO, copied: Callable[[int], object] = ignore) -> str:
    """Copies all bytes and returns their SHA-256 (hex); calls ``copied`` with the number of bytes of each piece.

    If ``target`` is a link to ``source``, only reads them.
    """
    digest = hashlib.sha256()
    is_linked = os.path.sameopenfile(source.fileno(), target.fileno())
    while chunk := source.read(CHUNK):
        if not is_linked:
            target.write(chunk)
        reach("chunk written")
        digest.update(chunk)
        copied(len(chunk))
    return digest.hexdigest()
