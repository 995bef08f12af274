"""Credentials of one cluster's API, read again when the server refuses them, and not more often than necessary.

The kubernetes client runs a credential plugin again only where it told an expiry, and then, in the last five minutes
before that, with every request.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

PAUSE_SECONDS = 30.0  # at least, between two readings: a plugin may ask a login server, or a person
AUTHORIZATION = "authorization"  # the header, and its name in the client's Configuration
_HELD = ("cert_file", "key_file")


class Credentials:
    """Those that a Configuration holds; safe to use from several threads."""

    def __init__(self, configuration: Any, read: Callable[[Any], object]) -> None:
        """``read`` fills a new Configuration from where the credentials come, and may raise anything."""
        self._configuration = configuration
        self._read = read
        self._lock = threading.Lock()
        self._next_reading = 0.0  # those that were read first may have been old already
        self._next_look = time.monotonic() + PAUSE_SECONDS
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
        with self._lock:
            if generation != self.generation or header != self.header:
                return True
            if time.monotonic() < self._next_reading:
                return False
            try:
                return self._replace()
            finally:
                self._next_reading = time.monotonic() + PAUSE_SECONDS

    def _replace(self) -> bool:
        from kubernetes import client

        fresh, held = client.Configuration(), self._configuration
        try:
            self._read(fresh)
            _strip(fresh)
        except Exception:  # the server's refusal tells more: whoever asked gets that
            return False
        changed = fresh.api_key != held.api_key or any(getattr(fresh, name) != getattr(held, name) for name in _HELD)
        if not changed or not (fresh.api_key or fresh.cert_file):
            return False
        held.api_key = fresh.api_key
        for name in _HELD:
            setattr(held, name, getattr(fresh, name))
        self._expiry = fresh.refresh_api_key_hook
        self.generation += 1
        return True

    def _look_at_expiry(self, configuration: Any) -> None:
        """The client's own hook, which it calls with every request, now and then."""
        if self._expiry is None or time.monotonic() < self._next_look or not self._lock.acquire(blocking=False):
            return
        try:
            self._next_look = time.monotonic() + PAUSE_SECONDS
            self._expiry(configuration)
            _strip(configuration)
        finally:
            self._lock.release()


def _strip(configuration: Any) -> None:
    """A token in a file has an end of line, as `kubectl create token` writes it; the client would send that."""
    configuration.api_key = {name: value.strip() for name, value in configuration.api_key.items()}
