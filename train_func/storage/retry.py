"""Calls that end within a known time, whatever they wait for, and the probe of a store."""

import secrets
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from train_func.errors import StorageFailed
from train_func.storage.store import Store, check_prefix

PROBE_SECONDS = 4.5  # the promise is 5

T = TypeVar("T")


def begin(call: Callable[[], T]) -> "Future[T]":
    """Runs ``call()`` in a daemon thread, which may be left behind: a hung mount or a silent name server ends late."""
    outcome: Future[T] = Future()

    def work() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return outcome


def call_with_timeout(seconds: float, call: Callable[[], T]) -> T:
    """Returns the result of ``call()``; raises TimeoutError after ``seconds`` and leaves its thread behind."""
    return begin(call).result(seconds)


def probe(store: Store, prefix: str) -> None:
    """Puts, gets, replaces and deletes an object under ``prefix``, and finds out whether conditions are heeded.

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
    """Raises StorageFailed, reason "unsupported", where the store writes although a condition does not hold."""
    try:
        put()
    except StorageFailed as failure:
        if failure.reason != "conflict":
            raise
        return
    raise StorageFailed(
        f"probe of {store.address}: the server has replaced an object that it was to write only if {condition}. Runs "
        "need that: by it one of two clients or attempts wins. Keep them on a server with the conditional writes of "
        "S3, or in a folder",
        reason="unsupported",
    )
