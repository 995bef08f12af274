"""The lead: the pointer of a training's checkpoints as one attempt moves it, until a later one has taken it over.

It moves by compare-and-swap.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace

from train_func.errors import StorageFailed
from train_func.storage import Object, Store, find
from train_func.worker.checkpoint.manifest import Pointer

TAKES = 10  # tries to move the pointer while others write it


class Fenced(StorageFailed):
    """A later attempt has taken over."""


class Lead:
    """Of attempt ``attempt``; ``pointer`` is what it has last read or written."""

    def __init__(self, store: Store, key: str, run: str, attempt: int) -> None:
        self._store, self._key, self._run, self._attempt = store, key, run, attempt
        self.pointer = Pointer(attempt=attempt)
        self._version: str | None = None

    def take(self, rebuilt: Callable[[str], Pointer]) -> None:
        """Makes this attempt the one that leads.

        ``rebuilt`` makes a pointer of what lies in the store, told why none can be read, or raises.
        """
        for _ in range(TAKES):
            found = find(self._store, self._key)
            try:
                there = self._read(found, rebuilt)
            except StorageFailed:
                if _version(find(self._store, self._key)) == _version(found):
                    raise
                continue  # another attempt has begun meanwhile
            self._check_leads(there)
            try:
                return self._put(replace(there, attempt=self._attempt), _version(found))
            except StorageFailed as failure:
                if failure.reason != "conflict":
                    raise
        raise self._gave_up()

    def look(self, rebuilt: Callable[[str], Pointer]) -> None:
        """Reads the pointer and takes nothing over; ``rebuilt`` as in ``take``. Raises StorageFailed."""
        self.pointer = self._read(find(self._store, self._key), rebuilt)

    def move(self, change: Callable[[Pointer], Pointer]) -> None:
        """Raises Fenced when a later attempt leads."""
        for _ in range(TAKES):
            try:
                return self._put(change(self.pointer), self._version)
            except StorageFailed as failure:
                if failure.reason != "conflict":
                    raise
            self._read_again()  # perhaps it is this attempt's own, of which a failure was told
        raise self._gave_up()

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        """Raises Fenced in place of a failure when a later attempt leads, which deletes what this one uploads."""
        try:
            yield
        except StorageFailed:
            self._read_again()
            raise

    def _read(self, found: Object | None, rebuilt: Callable[[str], Pointer]) -> Pointer:
        if found is None:
            return rebuilt("it is gone")
        try:
            pointer = Pointer.from_json(found.data, self._where)
        except StorageFailed as failure:
            return rebuilt(str(failure))
        folder = self._key.rpartition("/")[0]
        strange = [of.key for of in pointer.kept if not of.key.startswith(f"{folder}/")]
        return rebuilt(f"it names {strange[0]}, which is none of this training") if strange else pointer

    def _read_again(self) -> None:
        found = self._store.get(self._key)
        self._check_leads(there := Pointer.from_json(found.data, self._where))
        self.pointer, self._version = there, found.version

    def _put(self, pointer: Pointer, version: str | None) -> None:
        moved = replace(pointer, moves=pointer.moves + 1)
        is_new = version is None
        self._version = self._store.put(self._key, moved.to_json(), if_absent=is_new, if_version=version)
        self.pointer = moved

    def _check_leads(self, there: Pointer) -> None:
        if there.attempt > self._attempt:
            raise Fenced(
                f"attempt {there.attempt} of {self._run} has taken over, as {self._where} says: this attempt, "
                f"{self._attempt}, can save nothing any more",
                reason="conflict",
            )

    def _gave_up(self) -> StorageFailed:
        return StorageFailed(f"{self._where} was written by others at each of {TAKES} tries", reason="conflict")

    @property
    def _where(self) -> str:
        return f"{self._store.address}/{self._key}"


def _version(found: Object | None) -> str | None:
    return found.version if found else None
