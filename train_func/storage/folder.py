"""A store in a folder of this machine, or of a volume that several machines have mounted."""

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote

from train_func import lock
from train_func.errors import StorageFailed
from train_func.storage import disk, retry
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
PLACING_ROUNDS = 20


class FolderStore(Scheme):
    """Objects are plain files; locks and unfinished files lie apart, under ``.train_func``."""

    example = "file:///absolute/folder"
    is_shared = False

    def __init__(self, root: Path, *, lock_seconds: float = LOCK_SECONDS) -> None:
        self.address = root.as_uri()
        self._root = root
        self._lock_seconds = lock_seconds
        asked = f"store {self.address}"
        try:
            retry.call_with_timeout(retry.PROBE_SECONDS, lambda: self._refuse_missing_parent(asked))
        except TimeoutError:  # a look at a hung mount never ends
            raise retry.silent(asked) from None

    @classmethod
    def open(cls, address: str) -> "FolderStore":
        """See Scheme."""
        return cls(cls.local_path(address))

    @classmethod
    def local_path(cls, address: str) -> Path:
        """See Scheme; percent signs are decoded, as ``Path.as_uri`` writes them."""
        given = unquote(address.removeprefix("file://"))
        if not given.startswith("/"):
            uri = Path(given or ".").absolute().as_uri()
            raise refused(address, f"the folder must be absolute, with three slashes: {uri!r}")
        parts = [part for part in given.split("/") if part]
        if ".." in parts or "." in parts or "\0" in given:
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
            taken = path if is_given_away else None
            return self._write("upload", key, lambda file: disk.copy(source, file, sent), taken=taken)

    def get(self, key: str) -> Object:
        with self._reading("get", key) as path:
            data = path.read_bytes()
        return Object(data, hashlib.sha256(data).hexdigest())

    def download(self, key: str, path: Path) -> str:
        with self._reading("download", key) as source_path:
            source = source_path.open("rb")
        with source, disk.replacing(path, f"download of {key!r} from {self.address} to {path}") as file:
            return disk.copy(source, file)

    def copy(self, source: str, target: str, size: int) -> str:
        """See Store; a link where the file system has them: no writer changes the bytes of an object."""
        with self._reading("copy", source) as path:
            file = path.open("rb")
        with file:
            return self._write("copy", target, lambda copied: disk.copy(file, copied), taken=path)

    def names(self, folder: str) -> list[str]:
        above = folder_prefix(folder)
        asked = f"names in {folder!r} in {self.address}"
        self._refuse_missing_parent(asked)
        with disk.disk_faults(asked):
            found = self._scan(self._root / above, above)
            return sorted(f"{item.name}/" if _is_folder(item) else item.name for item in found if self._holds(item))

    def checksum(self, key: str) -> str | None:
        """See Store; read from the bytes that are there."""
        with self._reading("get", key) as path, path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def list(self, prefix: str) -> list[Entry]:
        check_prefix(prefix)
        asked = f"list of {prefix!r} in {self.address}"
        self._refuse_missing_parent(asked)
        folder, _, begin = prefix.rpartition("/")
        with disk.disk_faults(asked):
            found = self._walk(self._root / folder, f"{folder}/" if folder else "", begin)
            return sorted(found, key=lambda entry: entry.key)

    def delete(self, key: str) -> None:
        """See Store; folders that it empties go too."""
        with self._faults("delete", key):
            path = self._root / key
            if not path.is_file():
                return
            with self._lock(key):
                path.unlink(missing_ok=True)
                disk.sync_folder(path.parent)
            with contextlib.suppress(OSError):  # the first that is not empty ends it
                for folder in path.relative_to(self._root).parents[:-1]:
                    (self._root / folder).rmdir()

    def probe(self, prefix: str) -> None:
        retry.probe(self, prefix, f"folder {self._root}")

    def _write(
        self,
        operation: str,
        key: str,
        write: Callable[[BinaryIO], str],
        *,
        if_absent: bool = False,
        if_version: str | None = None,
        taken: Path | None = None,
    ) -> str:
        with self._faults(operation, key):
            self._refuse_missing_parent(f"{operation} of {key!r} in {self.address}")
            with disk.temporary(self._inner("unfinished"), taken) as file:
                result = write(file)
                disk.settle(file)
                with self._lock(key):
                    if if_version is not None:
                        self._refuse_other_version(key, if_version)
                    self._place(file, key, exclusive=if_absent)
            return result

    def _place(self, file: BinaryIO, key: str, *, exclusive: bool) -> None:
        """Again when a delete removes the emptied folder at the same moment, which may fail any step here."""
        target = self._root / key
        for left in reversed(range(PLACING_ROUNDS)):
            try:
                disk.make_folders(target.parent)
                disk.place(file, target, exclusive=exclusive)
                break
            except FileExistsError as error:
                if error.filename2 is not None and not target.is_dir():
                    raise self._conflict(key, "it is there already") from None
                # Also where folders and files stand in each other's place.
                if not left or target.is_dir() or any(path.is_file() for path in target.parents):
                    raise
            except FileNotFoundError:
                if not left:
                    raise

    def _refuse_other_version(self, key: str, wanted: str) -> None:
        try:
            found = hashlib.sha256((self._root / key).read_bytes()).hexdigest()
        except FileNotFoundError:
            raise self._conflict(key, f"it is gone; version {wanted} was to be replaced") from None
        if found != wanted:
            raise self._conflict(key, f"it is version {found} now; version {wanted} was to be replaced")

    def _conflict(self, key: str, why: str) -> StorageFailed:
        return StorageFailed(
            f"conditional put of {key!r} in {self.address}: {why}; another writer was first, read it again",
            reason="conflict",
        )

    @contextlib.contextmanager
    def _lock(self, key: str) -> Iterator[None]:
        """Lets one writer at a time compare and replace ``key``, over all processes."""
        path = self._inner("locks") / hashlib.sha256(key.encode()).hexdigest()[:2]
        held = lock.take(path, self._lock_seconds, lock.SHARED)
        if held is None:
            raise StorageFailed(
                f"put or delete of {key!r} in {self.address}: another process has held the lock {path} for "
                f"{self._lock_seconds:.0f} s; see which (fuser {path}) and whether it is stopped",
                reason="unreachable",
            )
        try:
            yield
        finally:
            lock.release(held)

    def _inner(self, name: str) -> Path:
        folder = self._root / RESERVED / name
        disk.make_folders(folder)
        return folder

    def _sweep(self) -> None:
        """Removes what crashed writers left; a process that still writes to a file has touched it since."""
        oldest = time.time() - STALE_SECONDS
        with contextlib.suppress(OSError):
            for path in (self._root / RESERVED / "unfinished").iterdir():
                if path.stat().st_mtime < oldest:
                    path.unlink(missing_ok=True)

    def _walk(self, folder: Path, above: str, begin: str = "") -> Iterator[Entry]:
        """Every object in the folder; ``begin`` is how the names directly in it begin."""
        for item in self._scan(folder, above):
            if not item.name.startswith(begin):
                continue
            if _is_folder(item):
                yield from self._walk(folder / item.name, f"{above}{item.name}/")
            else:
                with contextlib.suppress(FileNotFoundError):  # deleted since
                    yield Entry(f"{above}{item.name}", item.stat().st_size)

    def _scan(self, folder: Path, above: str) -> Iterator["os.DirEntry[str]"]:
        try:
            found = os.scandir(folder)
        except (FileNotFoundError, NotADirectoryError):
            return
        with found:
            yield from (item for item in found if above or item.name != RESERVED)

    def _holds(self, item: "os.DirEntry[str]") -> bool:
        """Whether it is an object, or a folder with one somewhere in it."""
        return not _is_folder(item) or any(self._walk(Path(item.path), "folder/"))

    @contextlib.contextmanager
    def _faults(self, operation: str, key: str) -> Iterator[None]:
        check_key(key)
        with disk.disk_faults(f"{operation} of {key!r} in {self.address}"):
            yield

    @contextlib.contextmanager
    def _reading(self, operation: str, key: str) -> Iterator[Path]:
        with self._faults(operation, key):
            try:
                yield self._root / key
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                self._refuse_missing_parent(f"{operation} of {key!r} in {self.address}")
                raise StorageFailed(
                    f"{operation} of {key!r} in {self.address}: no object has that key; "
                    f"list({key.rpartition('/')[0]!r}) shows which there are",
                    reason="absent",
                ) from None

    def _refuse_missing_parent(self, asked: str) -> None:
        with disk.disk_faults(asked):
            if self._root.exists() and not self._root.is_dir():
                raise StorageFailed(f"{asked}: that is a file, not a folder", reason="address")
            if not self._root.parent.is_dir():
                raise StorageFailed(
                    f"{asked}: the folder {self._root.parent} does not exist; make it (mkdir -p), "
                    "mount its volume, or correct the store's address",
                    reason="bucket",
                )


def _is_folder(item: "os.DirEntry[str]") -> bool:
    return item.is_dir(follow_symlinks=False)
