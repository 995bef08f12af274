"""Carries a run's local files to the store, by content, so that the pods of a cluster find them.

A file that the store has already, by its SHA-256, is not sent again, also for other runs and other users.
"""

import re
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from train_func.client.backend import Input
from train_func.client.job_spec import parse_quantity, readable_quantity
from train_func.errors import InvalidInput, StorageFailed
from train_func.run import Run, replace_inputs
from train_func.storage import Store
from train_func.text import listed
from train_func.wire.layout import INPUTS

LARGE = 32 << 20  # bytes; less is sent in no time
SENT_AT_ONCE = 4  # files; a large one is sent by several threads of its own
ASKED_AT_ONCE = 16
PROGRESS_SECONDS = 3.0  # between two lines about how far an upload has come


def check_room(inputs: Mapping[str, Input], disk: str) -> None:
    """Raises InvalidInput unless a worker can keep all of ``inputs``, by field, in a cache of the size ``disk``."""
    # The same content under two names is kept once.
    sizes = {
        local.sha256: sum((local.path.parent / name).stat().st_size for name in local.files)
        for local in inputs.values()
    }
    if sum(sizes.values()) <= parse_quantity(disk):
        return
    largest = sorted(inputs.items(), key=lambda item: -sizes[item[1].sha256])
    parts = listed([f"{field} {readable_quantity(sizes[local.sha256])}" for field, local in largest])
    raise InvalidInput(
        f"disk={disk!r}: a worker's cache may hold at most this, and the files of this run are "
        f"{readable_quantity(sum(sizes.values()))} ({parts}), so it would be evicted; nothing was sent. Raise "
        "Cluster(disk=...), name a PersistentVolumeClaim in Cluster(cache=...), or put the files into one and name "
        "them pvc://CLAIM/PATH"
    )


def upload_inputs(run: Run, inputs: Mapping[str, Input], store: Store) -> Run:
    """Uploads the ``inputs``, by field, that the store lacks; returns the run with their addresses in the store.

    Raises:
        InvalidInput: a file has changed since it was checked.
        StorageFailed: the store is away, denies, or is full.
    """
    # An address in a store cannot hold every character that a file's name can.
    roots = {
        field: f"{INPUTS}/{local.sha256}/{re.sub('[?#]', '_', local.path.name)}" for field, local in inputs.items()
    }
    files = {
        roots[field] + name.removeprefix(local.path.name): (local.path.parent / name, sha256)
        for field, local in inputs.items()
        for name, sha256 in local.files.items()
    }
    sizes = {entry.key: entry.size for local in inputs.values() for entry in store.list(f"{INPUTS}/{local.sha256}/")}

    def is_held(key: str) -> bool:
        path, sha256 = files[key]
        num_bytes = path.stat().st_size
        return sizes.get(key) == num_bytes and (not num_bytes or store.checksum(key) == sha256)

    with ThreadPoolExecutor(ASKED_AT_ONCE) as askers:
        missing = [key for key, held_already in zip(files, askers.map(is_held, files), strict=True) if not held_already]
    total, sent = sum(files[key][0].stat().st_size for key in missing), 0
    lock, last_report = threading.Lock(), time.monotonic()
    if total >= LARGE:
        print(f"{total / 1e6:,.1f} MB of local files go to {store.address}/{INPUTS}, once")

    def add(num_bytes: int) -> None:
        nonlocal sent, last_report
        with lock:
            sent += num_bytes
            if total >= LARGE and (sent >= total or time.monotonic() - last_report >= PROGRESS_SECONDS):
                last_report = time.monotonic()
                print(f"  sent {sent / 1e6:,.1f} MB of {total / 1e6:,.1f} MB", flush=True)

    def send(key: str) -> None:
        path, sha256 = files[key]
        changed = InvalidInput(f"{path} changed during its upload; submit again", cause="data")
        try:
            uploaded = store.upload(key, path, sent=add)
        except StorageFailed as failure:
            if failure.reason == "damaged":
                raise changed from failure
            raise
        if uploaded != sha256:
            store.delete(key)
            raise changed

    # Of a folder of 100,000 images each waits for the server: one after the other took minutes.
    with ThreadPoolExecutor(SENT_AT_ONCE) as senders:
        list(senders.map(send, missing))
    return replace_inputs(run, {field: f"{store.address}/{root}" for field, root in roots.items()})
