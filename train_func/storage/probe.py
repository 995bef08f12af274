"""Finds out within seconds whether a store can be used for a run."""

import contextlib
import secrets

from train_func.errors import StorageFailed
from train_func.storage.address import check_prefix
from train_func.storage.patience import within
from train_func.storage.store import Store

PROBE_SECONDS = 4.5  # of one try; the promise is 5 for whatever answers
TRIES = 2  # a machine under load is silent too: one silence proves nothing


def probe(store: Store, prefix: str, place: str) -> None:
    """Puts, gets and deletes an object under ``prefix``.

    Args:
        store: gives up by itself sooner than PROBE_SECONDS where it can, because then it knows why.
        place: where the store is, for the message when it does not answer at all.

    Raises:
        StorageFailed: with the reason of the first step that failed.
    """
    check_prefix(prefix)
    for _ in range(TRIES):
        with contextlib.suppress(TimeoutError):
            return within(PROBE_SECONDS, lambda: _round_trip(store, prefix.removesuffix("/")))
    raise StorageFailed(
        f"probe of {store.address} ({place}): no answer in {TRIES} tries of {PROBE_SECONDS} s; see whether it is up, "
        "whether anything between here and there (name server, firewall, mount) is silent, and whether this machine "
        "is busy",
        reason="unreachable",
    )


def _round_trip(store: Store, prefix: str) -> None:
    # A key of this try alone: an earlier one that was given up may still write and delete its own.
    key = f"{prefix}/probe-{secrets.token_hex(8)}".removeprefix("/")
    data = secrets.token_bytes(32)
    store.put(key, data)
    try:
        if store.get(key).data != data:
            raise StorageFailed(f"probe of {store.address}: {key!r} came back with other bytes", reason="damaged")
    finally:
        store.delete(key)
