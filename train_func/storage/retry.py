"""How long a store is asked: tries with pauses, a limit for any call, and a probe that ends within seconds."""

import random
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TypeVar

from train_func.errors import StorageFailed
from train_func.storage.store import Store, check_prefix

FIRST_PAUSE = 0.2  # seconds
LONGEST_PAUSE = 3.0
PROBE_SECONDS = 4.5  # for all tries; the promise is 5 for whatever answers
AGAIN_SECONDS = 2.0  # after which a second try begins beside the first: a machine under load is silent too

_CHANCE = random.SystemRandom()  # a training draws from the generator of the process, and has seeded it

T = TypeVar("T")


class Backoff:
    """The tries of one operation: exponential pauses with a cap and full jitter, none begun after ``seconds``."""

    def __init__(self, seconds: float) -> None:
        self.num = 1
        self.num_damaged = 0
        """Of those whose answer could not be read, or was not what is stored."""
        self._seconds = seconds
        self._started = time.monotonic()

    @property
    def spent(self) -> float:
        """Seconds since the first try began."""
        return time.monotonic() - self._started

    def again(self) -> bool:
        """Pauses and counts one more try, or says False at once when there is no time for one."""
        pause = _CHANCE.uniform(0, min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (self.num - 1)))
        if self.spent + pause > self._seconds:
            return False
        time.sleep(pause)
        self.num += 1
        return True


def begin(call: Callable[[], T]) -> "Future[T]":
    """``call()`` in a thread of its own, which may be left behind: what a hung mount keeps waiting ends no earlier."""
    outcome: Future[T] = Future()

    def work() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return outcome


def call_with_timeout(seconds: float, call: Callable[[], T]) -> T:
    """The result of ``call()``; raises TimeoutError when that takes longer than ``seconds``: its thread is left behind.

    A silent name server, for one, ends no earlier.
    """
    outcome = begin(call)
    try:
        return outcome.result(seconds)
    except TimeoutError:
        if outcome.done():  # the call's own TimeoutError, not ours
            return outcome.result()
        raise


def probe(
    store: Store, prefix: str, place: str, *, seconds: float = PROBE_SECONDS, again: float = AGAIN_SECONDS
) -> None:
    """Puts, gets, replaces and deletes an object under ``prefix``; the first of two tries to end decides.

    It finds out too whether the store heeds the conditions of a put.

    Args:
        store: gives up by itself sooner than ``seconds`` where it can, because then it knows why.
        place: where the store is, for the message when it does not answer at all.
        seconds: for all tries.
        again: after which a second try begins beside the first.

    Raises:
        StorageFailed: with the reason of the first step that failed.
    """
    check_prefix(prefix)
    begun, tries = time.monotonic(), list[Future[None]]()
    for end in (begun + again, begun + seconds):
        tries.append(begin(lambda: _round_trip(store, prefix.removesuffix("/"))))
        ended, _ = wait(tries, max(0.0, end - time.monotonic()), FIRST_COMPLETED)
        if ended:
            return ended.pop().result()
    raise silent(f"probe of {store.address} ({place})", seconds)


def silent(asked: str, seconds: float = PROBE_SECONDS) -> StorageFailed:
    """The failure of what was asked of a store that has not answered at all."""
    return StorageFailed(
        f"{asked}: no answer in {seconds} s; see whether it is up, whether anything between here and there "
        "(name server, firewall, mount) is silent, and whether this machine is busy",
        reason="unreachable",
    )


def _round_trip(store: Store, prefix: str) -> None:
    # A key of this try alone: the other one writes and deletes its own.
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
