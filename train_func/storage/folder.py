"""A store in a folder of this machine, or of a volume that several machines have mounted."""

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote

from train_func.errors import StorageFailed
from train_func.process import lock
from train_func.storage import disk, probe
from train_func.storage.store import (
    RESERVED,
    Entry,
    Object,
    Scheme,
    check_key,
    check_prefix,
    folder_prefix,
    ignore,
    refused,
)

LOCK_SECONDS = 15.0  # a lock is held for milliseconds, unless its holder is stopped
STALE_SECONDS = 24 * 3600  # unfinished files of crashed writers go after so long


class FolderStore(Scheme):
    """A store whose objects are plain files; the lock and unfinished files are under ``.train_func``."""

    example = "file:///absolute/folder"
    is_shared = False

    def __init__(self, root: Path) -> None:
        self.address = root.as_uri()
        self._root = root

    @classmethod
    def open(cls, address: str) -> "FolderStore":
        """See Scheme."""
        return cls(cls.local_path(address))

    @classmethod
    def local_path(cls, address: str) -> Path:
        """See Scheme; percent signs are decoded, as ``Path.as_uri`` writes them."""
        path = unquote(address.removeprefix("file://"))
        if not path.startswith("/"):
            uri = Path(path or ".").absolute().as_uri()
            raise refused(address, f"the folder must be absolute, with three slashes: {uri!r}")
        parts = [part for part in path.split("/") if part]
        if ".." in parts or "." in parts or "\0" in path:
            raise refused(address, "write the folder without '.', '..' and NUL")
        if not parts:
            raise refused(address, "the root of the file system cannot be a store; name a folder in it")
        return Path("/", *parts)

    @classmethod
    def split(cls, address: str) -> tuple[str, str]:
        """See Scheme."""
        path = cls.local_path(address)
        return path.parent.as_uri(), path.name

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_version: str | None = None) -> str:
        """See Store; the version is the SHA-256 of the bytes."""

        def write(file: BinaryIO) -> str:
            file.write(data)
            return hashlib.sha256(data).hexdigest()

        return self._write("put", key, write, if_absent=if_absent, if_version=if_version)

    def upload(
        self, key: str, path: Path, *, sent: Callable[[int], object] = ignore, is_given_away: bool = False
    ) -> str:
        with disk.open_source(path, f"upload of {path} to {key!r} in {self.address}") as source:
            self._sweep()
            link_to = path if is_given_away else None
            return self._write("upload", key, lambda file: disk.copy(source, file, sent), link_to=link_to)

    def get(self, key: str) -> Object:
        with self._reading("get", key) as file:
            data = file.read()
        return Object(data, hashlib.sha256(data).hexdigest())

    def download(self, key: str, path: Path) -> str:
        with (
            self._reading("download", key) as source,
            disk.replacing(path, f"download of {key!r} from {self.address} to {path}") as file,
        ):
            return disk.copy(source, file)

    def copy(self, source: str, target: str) -> str:
        """See Store; makes a link if the file system has them, because no writer changes the bytes of an object."""
        with self._reading("copy", source) as file:
            return self._write("copy", target, lambda copied: disk.copy(file, copied), link_to=self._root / source)

    def checksum(self, key: str) -> str | None:
        """See Store; computes it from the bytes."""
        with self._reading("get", key) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]

    def names(self, folder: str) -> list[str]:
        above = folder_prefix(folder)
        with self._faults(f"names in {folder!r}"):
            try:
                items = [*os.scandir(self._root / above)]
            except (FileNotFoundError, NotADirectoryError):
                return []
            folders = [item.name for item in items if item.is_dir() and (above or item.name != RESERVED)]
            names = [f"{name}/" for name in folders if any(self._keys(f"{above}{name}/"))]
            return sorted([*names, *(item.name for item in items if item.is_file())])

    def list(self, prefix: str) -> list[Entry]:
        check_prefix(prefix)
        entries = []
        with self._faults(f"list of {prefix!r}"):
            for key in self._keys(prefix):
                with contextlib.suppress(FileNotFoundError):  # deleted since
                    entries.append(Entry(key, (self._root / key).stat().st_size))
        return sorted(entries, key=lambda entry: entry.key)

    def delete(self, *keys: str) -> None:
        """See Store; removes folders that become empty too."""
        for key in keys:
            check_key(key)
        for key in keys:
            path = self._root / key
            with self._faults(f"delete of {key!r}"):
                if not path.is_file():
                    continue
                with self._lock():
                    path.unlink(missing_ok=True)
                    with contextlib.suppress(OSError):  # the first that is not empty ends it
                        for folder in path.relative_to(self._root).parents[:-1]:
                            (self._root / folder).rmdir()
                disk.sync_folder(path.parent)

    def probe(self, prefix: str) -> None:
        probe.probe(self, prefix)

    def _write(
        self,
        operation: str,
        key: str,
        write: Callable[[BinaryIO], str],
        *,
        if_absent: bool = False,
        if_version: str | None = None,
        link_to: Path | None = None,
    ) -> str:
        check_key(key)
        with self._faults(f"{operation} of {key!r}"), disk.temporary(self._unfinished(), link_to) as file:
            target, result = self._root / key, write(file)
            disk.settle(file)
            with self._lock():
                self._check_conditions(key, if_absent=if_absent, if_version=if_version)
                disk.make_folders(target.parent)
                disk.place(file, target)
            disk.sync_folder(target.parent)
            return result

    def _check_conditions(self, key: str, *, if_absent: bool, if_version: str | None) -> None:
        if not if_absent and if_version is None:
            return
        path = self._root / key
        version = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
        if version != if_version:
            now, expected = (f"version {each}" if each else "no object" for each in (version, if_version))
            raise StorageFailed(
                f"conditional put of {key!r} in {self.address}: {now} is there, {expected} was expected; another "
                "writer was first, read it again",
                reason="conflict",
            )

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        """Locks the store for one writer of all processes, which places an object or removes one and its folders."""
        path = self._unfinished().with_name("lock")
        descriptor = lock.take(path, LOCK_SECONDS, lock.SHARED)
        if descriptor is None:
            raise StorageFailed(
                f"put or delete in {self.address}: another process has held the lock {path} for {LOCK_SECONDS:.0f} s; "
                f"see which (fuser {path}) and whether it is stopped",
                reason="unreachable",
            )
        try:
            yield
        finally:
            lock.release(descriptor)

    def _unfinished(self) -> Path:
        folder = self._root / RESERVED / "unfinished"
        disk.make_folders(folder)
        return folder

    def _sweep(self) -> None:
        """Removes files of crashed writers; a process that still writes to a file has touched it since.

        A second link is as old as its object and takes no room, so it stays.
        """
        oldest = time.time() - STALE_SECONDS
        with contextlib.suppress(OSError):
            for path in (self._root / RESERVED / "unfinished").iterdir():
                facts = path.stat()
                if facts.st_nlink == 1 and facts.st_mtime < oldest:
                    path.unlink(missing_ok=True)

    def _keys(self, prefix: str) -> Iterator[str]:
        """Yields the keys that begin with ``prefix``; reads no folder whose keys cannot."""

        def fail(error: OSError) -> None:
            if not isinstance(error, (FileNotFoundError, NotADirectoryError)):  # deleted since
                raise error

        top = self._root / prefix.rpartition("/")[0]
        for path, folders, names in os.walk(top, onerror=fail):
            above = Path(path).relative_to(self._root)
            if path == str(top):
                keys = {name: (above / name).as_posix() for name in folders}
                folders[:] = [name for name, key in keys.items() if key.startswith(prefix) and key != RESERVED]
            yield from (key for name in names if (key := (above / name).as_posix()).startswith(prefix))

    @contextlib.contextmanager
    def _reading(self, operation: str, key: str) -> Iterator[BinaryIO]:
        """Opens the file of an object."""
        check_key(key)
        with self._faults(f"{operation} of {key!r}"), contextlib.ExitStack() as opened:
            try:
                file = opened.enter_context((self._root / key).open("rb"))
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                raise StorageFailed(
                    f"{operation} of {key!r} in {self.address}: no object has that key; "
                    f"list({key.rpartition('/')[0]!r}) shows which there are",
                    reason="absent",
                ) from None
            yield file

    @contextlib.contextmanager
    def _faults(self, action: str) -> Iterator[None]:
        """Turns errors of the disk into StorageFailed; never makes the folder of a volume that is not mounted."""
        action = f"{action} in {self.address}"
        with disk.disk_faults(action):
            if self._root.exists() and not self._root.is_dir():
                raise StorageFailed(f"{action}: that is a file, not a folder", reason="address")
            if not self._root.parent.is_dir():
                raise StorageFailed(
                    f"{action}: the folder {self._root.parent} does not exist; make it (mkdir -p), "
                    "mount its volume, or correct the store's address",
                    reason="bucket",
                )
            yield
