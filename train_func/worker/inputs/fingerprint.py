"""SHA-256 of files and folders; that of a large file is remembered until the file changes."""

import contextlib
import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from train_func.storage.disk import make_folders, state_of

REMEMBERED_FROM = 1 << 20  # bytes; a smaller file is hashed sooner than looked up
SETTLED_SECONDS = 2.0  # a file changed more recently could change again within the tick of its time stamp


def of_file(path: Path, cache: Path) -> str:
    """Returns the SHA-256 (hex) of the file's bytes."""
    status = path.stat()
    if status.st_size < REMEMBERED_FROM:
        return _hash(path)
    state = state_of(status)
    note = cache / "fingerprints" / f"{hashlib.sha256(os.fsencode(path.resolve())).hexdigest()}.json"
    with contextlib.suppress(OSError, ValueError):
        known = json.loads(note.read_text())
        if known["state"] == state:
            return str(known["sha256"])
    sha256 = _hash(path)
    if time.time() - max(status.st_mtime, status.st_ctime) > SETTLED_SECONDS:
        with contextlib.suppress(OSError):  # the next reader hashes the file once more
            make_folders(note.parent)
            part = note.with_suffix(f".{secrets.token_hex(8)}.part")  # a process has the same id as one of another pod
            part.write_text(json.dumps({"state": state, "sha256": sha256}))
            part.replace(note)
    return sha256


def of_each(folder: Path, names: Iterable[str], cache: Path) -> dict[str, str]:
    """Returns the SHA-256 (hex) of files of ``folder``, by name."""
    return {name: of_file(folder / name, cache) for name in names}


def names_in(folder: Path, hidden: tuple[str, ...] = ()) -> list[str]:
    """Returns the paths of all files in a folder and below it, also behind links, from the folder and in order.

    A link to a folder that contains it is not followed; the link itself is in the list. Names that begin with one of
    ``hidden`` are left out.

    Raises:
        OSError: a folder cannot be read.
    """
    names: list[str] = []
    for place, folders, files in os.walk(folder, onerror=_raise, followlinks=True):
        here = Path(place)
        folders[:] = [name for name in folders if not name.startswith(hidden)] if hidden else folders
        back = [name for name in folders if _leads_back(folder, here / name)]
        folders[:] = [name for name in folders if name not in back]
        shown = [name for name in files if not (hidden and name.startswith(hidden))]
        names += [(here / name).relative_to(folder).as_posix() for name in (*shown, *back)]
    return sorted(names)


def _raise(error: OSError) -> None:
    raise error


def _leads_back(folder: Path, path: Path) -> bool:
    """Returns whether ``path``, below ``folder``, is a link to a folder that contains it, by any way."""
    if not path.is_symlink():
        return False
    target = path.resolve()
    above = [parent.resolve() for parent in path.parents if parent.is_relative_to(folder)]
    return target in above or folder.resolve().is_relative_to(target)


def of_named(sums: Mapping[str, str]) -> str:
    """Returns the fingerprint of a folder, from those of its files by name; a single file is named ""."""
    return sums.get("") or hashlib.sha256(json.dumps(dict(sums), sort_keys=True).encode()).hexdigest()


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
