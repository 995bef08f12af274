"""Finds out within seconds whether a store can be used for a run."""

import secrets
import time
from concurrent.futures import FIRST_COMPLETED, Future, wait

from train_func.errors import StorageFailed
from train_func.storage.address import check_prefix
from train_func.storage.retry import begin
from train_func.storage.store import Store

PROBE_SECONDS = 4.5  # for all tries; the promise is 5 for whatever answers
AGAIN_SECONDS = 2.0  # after which a second try begins beside the first: a machine under load is silent too


def probe(store: Store, prefix: str, place: str) -> None:
    """Puts, gets and deletes an object under ``prefix``; the first of two tries to end decides.

    Args:
        store: gives up by itself sooner than PROBE_SECONDS where it can, because then it knows why.
        place: where the store is, for the message when it does not answer at all.

    Raises:
        StorageFailed: with the reason of the first step that failed.
    """
    check_prefix(prefix)
    begun, tries = time.monotonic(), list[Future[None]]()
    for end in (begun + AGAIN_SECONDS, begun + PROBE_SECONDS):
        tries.append(begin(lambda: _round_trip(store, prefix.removesuffix("/"))))
        ended, _ = wait(tries, max(0.0, end - time.monotonic()), FIRST_COMPLETED)
        if ended:
            return ended.pop().result()
    raise silent(f"probe of {store.address} ({place})")


def silent(asked: str) -> StorageFailed:
    """The failure of what was asked of a store that has not answered at all."""
    return StorageFailed(
        f"{asked}: no answer in {PROBE_SECONDS} s; see whether it is up, whether anything between here and there "
        "(name server, firewall, mount) is silent, and whether this machine is busy",
        reason="unreachable",
    )


def _round_trip(store: Store, prefix: str) -> None:
    # A key of this try alone: the other one writes and deletes its own.
    key = f"{prefix}/probe-{secrets.token_hex(8)}".removeprefix("/")
    data = secrets.token_bytes(32)
    store.put(key, data)
    try:
        if store.get(key).data != data:
            raise StorageFailed(f"probe of {store.address}: {key!r} came back with other bytes", reason="damaged")
    finally:
        store.delete(key)
