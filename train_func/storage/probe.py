"""The probe of a store: checks that it answers in time, stores objects, and obeys conditions."""

import secrets
from collections.abc import Callable

from train_func.errors import StorageFailed
from train_func.process.timeout import call_with_timeout
from train_func.storage.store import Store, check_prefix

PROBE_SECONDS = 4.5  # the promise is 5


def probe(store: Store, prefix: str) -> None:
    """Puts, gets, replaces and deletes an object under ``prefix``, and checks that conditions are obeyed.

    Raises StorageFailed with the reason of the first step that failed.
    """
    check_prefix(prefix)
    try:
        call_with_timeout(PROBE_SECONDS, lambda: _round_trip(store, prefix.removesuffix("/")))
    except TimeoutError:
        raise StorageFailed(
            f"probe of {store.address}: no answer in {PROBE_SECONDS} s; see whether it is up, whether anything between "
            "here and there (name server, firewall, mount) is silent, and whether this machine is busy",
            reason="unreachable",
        ) from None


def _round_trip(store: Store, prefix: str) -> None:
    key = f"{prefix}/probe-{secrets.token_hex(8)}".removeprefix("/")
    data = secrets.token_bytes(32)
    version = store.put(key, data)
    try:
        if store.get(key).data != data:
            raise StorageFailed(f"probe of {store.address}: {key!r} came back with other bytes", reason="damaged")
        other = data[::-1]
        _check_refused(store, "the key was new (If-None-Match)", lambda: store.put(key, other, if_absent=True))
        store.put(key, other, if_version=version)
        _check_refused(
            store, "the object was still one version (If-Match)", lambda: store.put(key, data, if_version=version)
        )
    finally:
        store.delete(key)


def _check_refused(store: Store, condition: str, put: Callable[[], object]) -> None:
    """Raises StorageFailed, reason "unsupported", if the store writes although a condition does not hold."""
    try:
        put()
    except StorageFailed as failure:
        if failure.reason != "conflict":
            raise
        return
    raise StorageFailed(
        f"probe of {store.address}: the server replaced an object although it had to write only if {condition}. "
        "Runs need such conditions, so that one of two clients or attempts wins: keep them on a server with the "
        "conditional writes of S3, or in a folder",
        reason="unsupported",
    )
