"""What an error of a file system means for a store."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from train_func.errors import StorageFailed, StorageReason

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


@contextmanager
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
