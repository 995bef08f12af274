"""Credentials of one cluster's API, read again when the server refuses them, and not more often than necessary.

The kubernetes client runs a credential plugin again only where it told an expiry, and then, in the last five minutes
before that, with every request.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, TypeVar

from train_func.client.cluster.timings import Timings, Waits
from train_func.process_tree import kill_children_of
from train_func.storage.retry import begin

AUTHORIZATION = "authorization"  # the header, and its name in the client's Configuration
_HELD = ("cert_file", "key_file")

T = TypeVar("T")


def _read(read: Callable[[Any], T], threads: list[int]) -> tuple[Any, T]:
    from kubernetes import client

    threads.append(threading.get_native_id())
    configuration = client.Configuration()
    told = read(configuration)
    _strip(configuration)
    return configuration, told


_late: dict[Hashable, tuple[float, Future[tuple[Any, Any]], list[int]]] = {}
"""Readings that are not over, when they began and in which thread: a plugin may ask a person."""


def first(
    key: Hashable, read: Callable[[Any], T], timings: Timings, again: float | None = None
) -> tuple[Any, T] | None:
    """A new Configuration that ``read`` has filled, and what it returned; None when that takes too long.

    It then goes on in a thread of its own, which does not keep the program from ending: the next call with the same
    key waits for the same reading, and no longer than ``again`` seconds. After ``timings.login`` it is given up, and on
    Linux its plugin ended.
    """
    begun, reading, threads = _late.get(key) or (0.0, None, list[int]())
    seconds = timings.credentials if again is None else again
    if reading is None or not (reading.done() or time.monotonic() - begun < timings.login):
        for thread in threads:
            kill_children_of(thread)
        threads = []
        seconds, reading = timings.credentials, begin(partial(_read, read, threads))
        _late[key] = time.monotonic(), reading, threads
    wait([reading], seconds)
    if not reading.done():
        return None
    _late.pop(key, None)
    return reading.result()


class Credentials:
    """Those that a Configuration holds; safe to use from several threads."""

    def __init__(self, configuration: Any, read: Callable[[Any], object], timings: Timings) -> None:
        """``read`` fills a new Configuration from where the credentials come, and may raise anything."""
        self._configuration = configuration
        self._read = read
        self._timings = timings
        self._lock = threading.Lock()
        self._next_reading = 0.0  # those that were read first may have been old already
        self._next_look = time.monotonic() + self._timings.credentials_pause
        self.generation = 0
        """Counts how often they were replaced."""
        self._expiry = configuration.refresh_api_key_hook
        configuration.refresh_api_key_hook = self._look_at_expiry
        _strip(configuration)

    @property
    def header(self) -> str | None:
        """What a request carries as its Authorization."""
        value: str | None = self._configuration.api_key.get(AUTHORIZATION)
        return value

    def renew(self, generation: int, header: str | None) -> bool:
        """Whether there are others than those that a request was refused with, read again if need be."""
        with Waits.of_this_thread().lent(self._timings.credentials), self._lock:
            if generation != self.generation or header != self.header:
                return True
            if time.monotonic() < self._next_reading:
                return False
            try:
                return self._replace(self._read)
            finally:
                self._next_reading = time.monotonic() + self._timings.credentials_pause

    def _replace(self, read: Callable[[Any], object]) -> bool:
        """Whether ``read``, or an earlier reading that took too long, has found others."""
        fresh, held = self._found(read), self._configuration
        if fresh is None:
            return False
        changed = fresh.api_key != held.api_key or any(getattr(fresh, name) != getattr(held, name) for name in _HELD)
        if not changed or not (fresh.api_key or fresh.cert_file):
            return False
        held.api_key = fresh.api_key
        for name in _HELD:
            setattr(held, name, getattr(fresh, name))
        self._expiry = fresh.refresh_api_key_hook or self._expiry
        self.generation += 1
        return True

    def _found(self, read: Callable[[Any], object]) -> Any:
        """A new Configuration; None when there is none yet: one reading at a time, and only its begin is waited for."""
        with contextlib.suppress(Exception):  # the server's refusal, which the caller gets, tells more
            found = first(self, read, self._timings, again=0.0)
            return found and found[0]
        return None

    def _look_at_expiry(self, configuration: Any) -> None:
        """The client's own hook, which it calls with every request, now and then."""
        if self._expiry is None or time.monotonic() < self._next_look or not self._lock.acquire(blocking=False):
            return
        try:
            self._next_look = time.monotonic() + self._timings.credentials_pause
            with Waits.of_this_thread().lent(self._timings.credentials):
                self._replace(self._expiry)
        finally:
            self._lock.release()


def _strip(configuration: Any) -> None:
    """A token in a file has an end of line, as `kubectl create token` writes it; the client would send that."""
    configuration.api_key = {name: value.strip() for name, value in configuration.api_key.items()}
