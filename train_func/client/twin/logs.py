"""Lines of all pods of a job as they come: from the first, complete, and until the last has been written."""

import contextlib
import os
import threading
from collections.abc import Collection, Iterator

from train_func.client.status import LogLine
from train_func.client.twin.folder import JobFolder
from train_func.client.twin.record import PodRecord

POLL_SECONDS = 0.1
CHUNK_BYTES = 256 * 1024
LAST_BYTES = 64 * 1024  # in which the last line is looked for
LONGEST_LINE = 1024 * 1024  # bytes; a longer one comes in pieces


def lines(folder: JobFolder, *, follow: bool, worker: int | None, stop: threading.Event) -> Iterator[LogLine]:
    """Every incarnation in turn: what has been written so far, or with ``follow`` until the controller is gone or
    ``stop`` is set.

    ``worker``: only of this one.

    One that has ended is read to its end before the next; of those that live, a piece of each at a time.
    """
    readers: dict[str, _Reader] = {}
    while not stop.is_set():
        controlled = folder.controlled()  # before reading: what is written after it was gone is read below
        for record in (found for found in folder.records() if worker in (None, found.worker)):
            reader = readers.setdefault(record.uid, _Reader(folder, record, to_now=not follow))
            reader.ended = record.over or record.deleted
        for reader in readers.values():
            yield from reader.read()
            while reader.ended and reader.moved:
                yield from reader.read()
            if reader.ended:
                yield from reader.rest()
        if any(reader.moved for reader in readers.values()):
            continue
        for reader in readers.values():
            if not (controlled and follow):
                yield from reader.rest()
        if not (controlled and follow):
            return
        stop.wait(POLL_SECONDS)


def last_lines(folder: JobFolder, uids: Collection[str]) -> dict[str, str]:
    """The last whole line of each of these incarnations, as far as there is one."""
    found: dict[str, str] = {}
    for record in (record for record in folder.records() if record.uid in uids):
        with contextlib.suppress(FileNotFoundError), folder.pod_log(record).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_BYTES))
            *lines, _ = file.read().split(b"\n")
            if lines:
                found[record.uid] = lines[-1].decode(errors="replace")
    return found


class _Reader:
    """One pod's log, read as far as it has been written."""

    def __init__(self, folder: JobFolder, record: PodRecord, *, to_now: bool) -> None:
        """``to_now``: what is written later is not read: a worker may never stop writing."""
        self._path = folder.pod_log(record)
        self._until = self._path.stat().st_size if to_now and self._path.exists() else None
        self._worker = record.worker
        self._uid = record.uid
        self._position = 0
        self._begun = b""  # a line without its end
        self.ended = False
        """No more will be written."""
        self.moved = False
        """The last ``read`` found something new."""

    def read(self) -> Iterator[LogLine]:
        """The lines that the next piece completes."""
        self.moved = False
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                left = CHUNK_BYTES if self._until is None else self._until - self._position
                data = file.read(min(CHUNK_BYTES, left))
        except FileNotFoundError:
            return
        self._position += len(data)
        self.moved = bool(data)
        *complete, self._begun = (self._begun + data).split(b"\n")
        yield from map(self._line, complete)
        while len(self._begun) > LONGEST_LINE:
            cut = _character_boundary(self._begun, LONGEST_LINE)
            yield self._line(self._begun[:cut])
            self._begun = self._begun[cut:]

    def rest(self) -> Iterator[LogLine]:
        """A last line that was never ended."""
        if self._begun:
            yield self._line(self._begun)
            self._begun = b""

    def _line(self, data: bytes) -> LogLine:
        return LogLine(self._worker, self._uid, data.decode(errors="replace").removesuffix("\r"))


def _character_boundary(data: bytes, position: int) -> int:
    """The last place up to ``position`` where no UTF-8 character is cut."""
    return next((cut for cut in range(position, position - 4, -1) if data[cut] & 0xC0 != 0x80), position)
