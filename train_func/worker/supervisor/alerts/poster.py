"""Posts JSON to a service in a thread, so that a service that is away, refuses or hangs costs the training nothing.

The address of a service may be a credential, so no message has it, and none has the words of a library about it.
"""

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from train_func.worker.rank import reporting

POST_SECONDS = 4.0  # for the service to answer


class NoWebAddress(ValueError):
    """The address of a service is none of the web."""


class Poster(threading.Thread):
    """Makes posts one after the other; reports the first that fails, and no other."""

    def __init__(self, subject: str, variable: str, *, most: int, pause: float = 0.0) -> None:
        """Begins.

        Args:
            subject: the posts in words.
            variable: name of the variable with the address.
            most: how many posts may wait; if more do, the oldest are dropped.
            pause: seconds between two posts while no ``flush`` waits.
        """
        super().__init__(name="poster", daemon=True)
        self._subject, self._variable, self._pause = subject, variable, pause
        self._waiting: deque[Callable[[], object]] = deque(maxlen=most)
        self._is_posting = self._has_failed = False
        self._changed = threading.Condition()
        self.start()

    def send(self, post: Callable[[], object]) -> None:
        """Queues a post; returns at once."""
        with self._changed:
            self._waiting.append(post)
            self._changed.notify_all()

    def flush(self, seconds: float) -> None:
        """Waits until all posts are made, at most ``seconds``."""
        with self._changed:
            self._pause = 0.0
            self._changed.notify_all()
            self._changed.wait_for(lambda: not (self._waiting or self._is_posting), seconds)

    def run(self) -> None:
        ended = time.monotonic() - self._pause
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                while (left := ended + self._pause - time.monotonic()) > 0:
                    self._changed.wait(left)
                post, self._is_posting = self._waiting.popleft(), True
            try:
                post()
            except Exception as error:
                if not self._has_failed:
                    self._has_failed = True
                    reporting.note(
                        f"{self._subject} was not sent: the service that {self._variable} names {_words(error)}"
                    )
            ended = time.monotonic()
            with self._changed:
                self._is_posting = False
                self._changed.notify_all()


def post_json(
    address: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None, authority: Path | None = None
) -> None:
    """Posts an object. ``authority``: the file of trusted certificates; None: those of this machine.

    It follows no redirect, which would lose the object, and take the headers to another service.
    """
    import ssl  # most jobs post nothing
    from urllib import request

    if not address.startswith(("http://", "https://")):
        raise NoWebAddress
    headers = {"Content-Type": "application/json", "User-Agent": "train_func", **(headers or {})}
    trust = ssl.create_default_context(cafile=authority) if authority else None
    opener = request.OpenerDirector()
    for handler in (
        request.ProxyHandler(),
        request.HTTPHandler(),
        request.HTTPSHandler(context=trust),
        request.HTTPErrorProcessor(),
        request.HTTPDefaultErrorHandler(),
    ):
        opener.add_handler(handler)
    with opener.open(request.Request(address, json.dumps(body).encode(), headers), timeout=POST_SECONDS):
        pass


def _words(error: Exception) -> str:
    """Returns the error in words that do not contain the address."""
    from urllib.error import HTTPError

    if isinstance(error, HTTPError):
        return f"answered {error.code}"
    reason = getattr(error, "reason", None)  # a text, of some errors
    cause = reason if isinstance(reason, Exception) else error
    if isinstance(cause, TimeoutError):
        return f"did not answer within {POST_SECONDS:g} s"
    if isinstance(cause, OSError) and cause.filename:
        return f"was not asked: {cause.filename}: {cause.strerror}"
    if isinstance(cause, OSError) and cause.strerror and cause.errno:
        return f"cannot be reached: {type(cause).__name__} {cause.errno}"
    if isinstance(cause, NoWebAddress):
        return "has no address that begins with http:// or https://"
    return f"cannot be reached: {type(cause).__name__}"
