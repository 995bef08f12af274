"""Claim: of several clients that submit a run at once, the records in its store are those of the one with the job.

Each replaces the records of the one before, and only as long as they are those that it has seen before it found no
job. Which of them gets its job is for the backend to decide; the others put back what they have replaced.
"""

import contextlib
from collections.abc import Mapping

from train_func.errors import StorageFailed
from train_func.layout import RunKeys
from train_func.storage import Store, find


class Claim:
    """Made before the backend is asked for the job: another client's job that comes later comes with its records."""

    def __init__(self, store: Store, keys: RunKeys) -> None:
        self._store = store
        self._keys = keys
        self._before = {key: find(store, key) for key in (keys.run, keys.submission, keys.manifest, keys.cells)}
        self._cancelled = find(store, keys.cancelled)
        self._written: dict[str, tuple[bytes, str]] = {}  # with their versions

    @property
    def is_first(self) -> bool:
        """Whether the store had no record of the run."""
        return self._before[self._keys.run] is None

    def write(self, records: Mapping[str, bytes]) -> bool:
        """Replaces the records; False, with nothing replaced, when another client has done so meanwhile.

        Raises:
            StorageFailed: for another reason; nothing is replaced then either, as far as the store allows it.
        """
        try:
            for key, data in records.items():
                seen = before.version if (before := self._before[key]) else None
                self._written[key] = (data, self._store.put(key, data, if_absent=seen is None, if_version=seen))
            self._store.delete(self._keys.cancelled)
        except StorageFailed as failure:
            self.undo()
            if failure.reason != "conflict":
                raise
            return False
        return True

    def undo(self) -> None:
        """Puts back what was replaced and removes what is new, where no other client has replaced it again."""
        for key, (_, version) in self._written.items():
            with contextlib.suppress(StorageFailed):  # the failure that led here is what is told
                if before := self._before[key]:
                    self._store.put(key, before.data, if_version=version)
                elif (found := find(self._store, key)) and found.version == version:
                    self._store.delete(key)
        with contextlib.suppress(StorageFailed):
            run, before = find(self._store, self._keys.run), self._before[self._keys.run]
            if self._cancelled and run and before and run.data == before.data:
                self._store.put(self._keys.cancelled, self._cancelled.data, if_absent=True)

    def confirm(self) -> None:
        """After the job was created: where others have replaced the records meanwhile, they are written again."""
        _, version = self._written[self._keys.run]
        found = find(self._store, self._keys.run)
        if found is None or found.version != version:
            for key, (data, _) in self._written.items():
                self._store.put(key, data)
