"""Files that are there whole or not at all, also after a crash or a power cut."""

import contextlib
import hashlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

CHUNK = 1 << 20  # bytes


@contextlib.contextmanager
def temporary(folder: Path) -> Iterator[BinaryIO]:
    """A new file in ``folder``, to be written, settled and placed; removed if it was not."""
    path = folder / f".{secrets.token_hex(8)}.part"
    with path.open("xb+") as file:
        try:
            yield file
        finally:
            path.unlink(missing_ok=True)


def settle(file: BinaryIO) -> None:
    """Writes the bytes of ``file`` to the disk; the slow step, to be done before any lock is taken."""
    file.flush()
    os.fsync(file.fileno())


def place(file: BinaryIO, target: Path, *, exclusive: bool = False) -> None:
    """Makes a settled ``file`` appear at ``target``, for good when this returns.

    Raises FileExistsError with ``exclusive`` when something is there; the choice is one step for all processes.
    """
    if exclusive:
        os.link(file.name, target)
    else:
        Path(file.name).replace(target)
    sync_folder(target.parent)


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


def copy(source: BinaryIO, target: BinaryIO) -> str:
    """Copies everything and returns its SHA-256 (hex)."""
    digest = hashlib.sha256()
    while chunk := source.read(CHUNK):
        target.write(chunk)
        digest.update(chunk)
    return digest.hexdigest()
