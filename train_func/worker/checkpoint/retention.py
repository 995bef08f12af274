"""Retention: what a checkpoint has replaced goes when the store is seen to have the new one, and never before."""

from collections.abc import Iterable

from train_func.errors import StorageFailed
from train_func.storage import Store, scheme_of
from train_func.worker.checkpoint.manifest import FileEntry


def check_stored(store: Store, folder: str, files: Iterable[FileEntry]) -> None:
    """Compares the files in ``folder`` with what the store says it has: their sizes, and their recorded SHA-256.

    The bytes are not read back. A server has compared them with their SHA-256 when they came. A folder has written
    them to the disk before their name appeared in it, and a read would find them in memory still, for about a second
    of a processor per GB.

    Raises:
        StorageFailed: reason "damaged", naming the first that is missing or another one; or the store's own failure.
    """
    there = {entry.key: entry.size for entry in store.list(f"{folder}/")}
    has_records = scheme_of(store.address).local_path(store.address) is None
    for file in files:
        where = f"{store.address}/{file.key}"
        if file.key not in there:
            raise StorageFailed(f"{where}: the store took it, and has it no more", reason="damaged")
        if there[file.key] != file.size:
            has = f"the store has {there[file.key]} bytes of it, and {file.size} were uploaded"
            raise StorageFailed(f"{where}: {has}", reason="damaged")
        if has_records and store.checksum(file.key) != file.sha256:
            raise StorageFailed(f"{where}: the store has another SHA-256 of it than was uploaded", reason="damaged")


def delete_others(store: Store, folder: str, attempt: int, needed: set[str]) -> None:
    """Deletes in ``folder`` what is not needed, of ``attempt`` and earlier ones: a later one may upload already."""
    for entry in store.list(f"{folder}/"):
        of = entry.key.removeprefix(f"{folder}/").partition("/")[0]
        if entry.key not in needed and of.isdecimal() and int(of) <= attempt:
            store.delete(entry.key)
