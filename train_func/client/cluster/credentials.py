"""Credentials of one cluster's API, read again when the server refuses them, and not more often than necessary.

The kubernetes client runs a credential plugin again only where it told an expiry, and then, in the last five minutes
before that, with every request.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

import psutil

from train_func.client.cluster.timings import Timings, Waits

AUTHORIZATION = "authorization"  # the header, and its name in the client's Configuration
COARSE_SECONDS = 5.0  # the time when a process was started is told in whole seconds
EXEC_INFO = "KUBERNETES_EXEC_INFO"  # in the environment of every credential plugin
_HELD = ("cert_file", "key_file")

T = TypeVar("T")


class Reading(Generic[T]):
    """One reading of credentials, in a thread of its own: the client waits without a limit for a plugin."""

    def __init__(self, read: Callable[[Any], T], timings: Timings) -> None:
        self._timings = timings
        self._begun = time.monotonic()
        self._outcome: Future[tuple[Any, T]] = Future()
        self._thread = threading.Thread(target=self._run, args=(read,), name="credentials", daemon=True)
        self._thread.start()

    def _run(self, read: Callable[[Any], T]) -> None:
        from kubernetes import client

        configuration = client.Configuration()
        try:
            told = read(configuration)
            _strip(configuration)
            self._outcome.set_result((configuration, told))
        except Exception as error:
            self._outcome.set_exception(error)

    def result(self) -> tuple[Any, T]:
        """The Configuration that was read, and what ``read`` returned or raised, once it is over."""
        return self._outcome.result(0)

    def over(self, seconds: float) -> bool:
        """Whether it is, after ``seconds`` at most."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def given_up(self) -> bool:
        """Whether it has taken too long; its plugin is then ended."""
        if self.over(0) or time.monotonic() - self._begun < self._timings.login:
            return False
        for plugin in plugins():
            with contextlib.suppress(psutil.Error):
                if time.time() - plugin.create_time() > self._timings.login - COARSE_SECONDS:
                    plugin.kill()
        return True


_late: dict[Hashable, Reading[Any]] = {}


def first(key: Hashable, read: Callable[[Any], T], timings: Timings) -> tuple[Any, T] | None:
    """A new Configuration that ``read`` has filled, and what it returned; None when that takes too long.

    It then goes on: the next call with the same key waits for the same reading.
    """
    reading: Reading[T] | None = _late.pop(key, None)
    if reading is None or reading.given_up():
        reading = Reading(read, timings)
    over = False
    try:
        over = reading.over(timings.credentials)
    finally:
        if not over:
            _late[key] = reading
    return reading.result() if over else None


def plugins() -> list[psutil.Process]:
    """Those that this process waits for; the client does not tell which one it has started."""
    me, found = psutil.Process(), []
    inherited = _exec_info(me)  # if so, every child has it
    for child in me.children():
        with contextlib.suppress(psutil.Error):  # it has just ended
            if _exec_info(child) not in (None, inherited):
                found.append(child)
    return found


def _exec_info(process: psutil.Process) -> str | None:
    value: str | None = (process.as_dict(["environ"])["environ"] or {}).get(EXEC_INFO)
    return value


class Credentials:
    """Those that a Configuration holds; safe to use from several threads."""

    def __init__(self, configuration: Any, read: Callable[[Any], object], timings: Timings) -> None:
        """``read`` fills a new Configuration from where the credentials come, and may raise anything."""
        self._configuration = configuration
        self._read = read
        self._timings = timings
        self._lock = threading.Lock()
        self._reading: Reading[object] | None = None  # that takes its time
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
        if self._reading and self._reading.given_up():
            self._reading = None
        seconds = 0.0 if self._reading else self._timings.credentials
        reading = self._reading = self._reading or Reading(read, self._timings)
        if not reading.over(seconds):
            return None
        self._reading = None
        with contextlib.suppress(Exception):  # the server's refusal, which the caller gets, tells more
            configuration, _ = reading.result()
            return configuration
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
