"""Carries a run's local files to the store, by content, so that the pods of a cluster find them.

What lies there already, by its SHA-256, is not sent again: not for the next run, and not for a colleague's.
"""

import re
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train_func.client import quantity
from train_func.client.backend import Input
from train_func.client.cluster.timings import Timings
from train_func.errors import InvalidInput
from train_func.layout import INPUTS
from train_func.run import Run
from train_func.storage import Store
from train_func.text import listed

LARGE = 32 << 20  # bytes; less is sent in no time
SENT_AT_ONCE = 4  # files; a large one is sent by several threads of its own
ASKED_AT_ONCE = 16


@dataclass(frozen=True)
class _File:
    path: Path
    num_bytes: int
    sha256: str


def check_room(inputs: Mapping[str, Input], disk: str) -> None:
    """Raises InvalidInput unless a worker can keep all of ``inputs``, by field, in a cache of the size ``disk``."""
    # The same content under two names is kept once.
    held = {
        found.sha256: sum((found.path.parent / name).stat().st_size for name in found.files)
        for found in inputs.values()
    }
    if sum(held.values()) <= quantity.parse(disk):
        return
    largest = sorted(inputs.items(), key=lambda item: -held[item[1].sha256])
    told = listed([f"{field} {quantity.readable(held[found.sha256])}" for field, found in largest])
    raise InvalidInput(
        f"disk={disk!r}: a worker keeps at most so much in its cache, and the files of this run are "
        f"{quantity.readable(sum(held.values()))} ({told}), so it would be evicted; nothing was sent. Raise "
        "Cluster(disk=...), name a PersistentVolumeClaim in Cluster(cache=...), or put the files into one and name "
        "them pvc://CLAIM/PATH"
    )


def upload_inputs(run: Run, inputs: Mapping[str, Input], store: Store, timings: Timings) -> Run:
    """Uploads what the store lacks of ``inputs``, by field; returns the run with their addresses in the store.

    Raises:
        InvalidInput: a file has changed since it was checked.
        StorageFailed: the store is away, denies, or is full.
    """
    missing = {key: file for found in inputs.values() for key, file in _missing(found, store).items()}
    progress = _Progress(sum(file.num_bytes for file in missing.values()), store.address, timings)

    def send(key: str) -> None:
        file = missing[key]
        if store.upload(key, file.path, sent=progress.add) != file.sha256:
            store.delete(key)
            raise InvalidInput(f"{file.path} changed while it was carried to the store; submit again", cause="data")

    # Of a folder of 100,000 images each waits for the server: one after the other took minutes.
    with ThreadPoolExecutor(SENT_AT_ONCE) as senders:
        list(senders.map(send, missing))
    addresses: dict[str, Any] = {field: f"{store.address}/{_root(found)}" for field, found in inputs.items()}
    return run.with_inputs(addresses)


def _root(found: Input) -> str:
    """The key of the file or folder; an address in a store cannot hold every character that a file's name can."""
    return f"{INPUTS}/{found.sha256}/{re.sub('[?#]', '_', found.path.name)}"


def _missing(found: Input, store: Store) -> dict[str, _File]:
    """The files that the store does not have, by key."""
    there = {entry.key: entry.size for entry in store.list(f"{INPUTS}/{found.sha256}/")}

    def unless_there(name: str) -> tuple[str, _File] | None:
        path, sha256 = found.path.parent / name, found.files[name]
        key = _root(found) + name.removeprefix(found.path.name)
        num_bytes = path.stat().st_size
        is_there = there.get(key) == num_bytes and (not num_bytes or store.checksum(key) == sha256)
        return None if is_there else (key, _File(path, num_bytes, sha256))

    with ThreadPoolExecutor(ASKED_AT_ONCE) as askers:
        return dict(filter(None, askers.map(unless_there, found.files)))


class _Progress:
    """Says how far a large upload has come."""

    def __init__(self, num_bytes: int, address: str, timings: Timings) -> None:
        self._pause = timings.progress
        self._all = num_bytes
        self._sent = 0
        self._said = time.monotonic()
        self._lock = threading.Lock()
        if num_bytes >= LARGE:
            print(f"{_megabytes(num_bytes)} of local files go to {address}/{INPUTS}, once")

    def add(self, num_bytes: int) -> None:
        with self._lock:
            self._sent += num_bytes
            done = self._sent >= self._all
            if self._all < LARGE or not (done or time.monotonic() - self._said >= self._pause):
                return
            self._said = time.monotonic()
            print(f"  sent {_megabytes(self._sent)} of {_megabytes(self._all)}", flush=True)


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.1f} MB"
