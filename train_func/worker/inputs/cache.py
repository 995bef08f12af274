"""The machine's cache folder: each entry is made by one process while the others wait, and is whole or absent."""

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

from train_func.process import lock
from train_func.storage.disk import make_folders, sync_folder
from train_func.wire.layout import home

Loaded = TypeVar("Loaded")


def machine_cache(environ: Mapping[str, str]) -> Path:
    """Returns the folder that all processes of this machine share, kept from job to job (in a pod: a volume)."""
    if folder := environ.get("TRAIN_FUNC_CACHE_DIR"):
        return Path(folder)
    return home(environ) / "cache"


def entry(cache: Path, key: str, make: Callable[[Path], None]) -> Path:
    """Returns the file or folder ``cache/key``; if it is absent, ``make`` writes it to the path that it gets.

    One process makes it while the others wait. A maker that dies or raises leaves nothing that counts.
    """
    target = cache / key
    if target.exists():
        return target
    make_folders(target.parent)
    with _lock(target):
        if not target.exists():
            _make(target, make)
    return target


def _lock(target: Path) -> AbstractContextManager[None]:
    return lock.hold(target.with_name(f"{target.name}.lock"), lock.SHARED)


def _make(target: Path, make: Callable[[Path], None]) -> None:
    part = target.with_name(f"{target.name}.part")
    _remove_left(target.parent, part)
    try:
        make(part)
        _settle(part)
    except BaseException:
        remove(part)  # a full disk would stay full for all others
        raise
    part.replace(target)
    sync_folder(target.parent)


def _remove_left(folder: Path, own: Path) -> None:
    """Removes the parts of makers that have died: the one of this entry, and those of others whose lock is free."""
    remove(own)
    for part in (*folder.glob("*.part"), *folder.glob("*.parts")):
        path = part.with_suffix(".lock")
        with contextlib.suppress(OSError):  # of another user, or gone
            if path.exists() and (descriptor := lock.take(path, 0, lock.SHARED)) is not None:
                try:
                    remove(part)
                finally:
                    lock.release(descriptor)


def load_entry(cache: Path, key: str, make: Callable[[Path], None], load: Callable[[Path], Loaded]) -> Loaded:
    """Returns what ``load`` makes of the entry; one that something outside this program has cut short is made again."""
    path = entry(cache, key, make)
    try:
        return load(path)
    except (ValueError, OSError) as error:
        if not _may_be_damage(error):
            raise
    with _lock(path):
        try:
            return load(path)  # another process has made it again
        except (ValueError, OSError) as error:
            if not _may_be_damage(error):
                raise
            remove(path)
            _make(path, make)
            return load(path)


def _may_be_damage(error: Exception) -> bool:
    """Arrow's and JSON's errors are ValueErrors; a file is absent while another process makes the entry again."""
    return not isinstance(error, OSError) or error.errno in (None, errno.ENOENT)


def remove(path: Path) -> None:
    """Removes a file or a folder; absent is fine."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _settle(path: Path) -> None:
    """Writes a finished part to the disk, before its name says that it is whole."""
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
