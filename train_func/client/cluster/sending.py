"""How a request is sent to the API: bounded in time, and again where that is safe and helps.

Again at once: what only reads or deletes, when the server had closed a kept connection; anything, when it was refused
for want of valid credentials and there are newer ones. Again later: what a busy server did not take (429, whatever it
was), and what only reads or deletes when the server says by Retry-After that it will answer later.
"""

import random
import threading
import time
from collections.abc import Mapping
from typing import Any

from train_func.client.cluster.credentials import AUTHORIZATION, Credentials
from train_func.client.cluster.timings import Timings, Waits

TWICE = ("GET", "DELETE")  # may be done twice; a POST is never sent again when it may have been done
BUSY, UNAUTHORIZED = 429, 401
SHORTEST_PAUSE, FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0, 10.0  # the latter where the server does not say how long
SPREAD = 0.2  # of a pause, so that those who were refused together do not come back together
TELL_SECONDS = 30.0  # between two lines about a busy server
NO_API = "what answers there is no Kubernetes API, by its answer in HTML or XML; see the server's address"


class Sender:
    """Stands in for ``ApiClient.request``, which tries once."""

    def __init__(self, client: Any, credentials: Credentials, where: str, timings: Timings) -> None:
        self._client = client
        self._send = client.request
        self._credentials = credentials
        self._generation = 0  # of the credentials that the client's connections were made with
        self._where = where
        self._timings = timings
        self._lock = threading.Lock()
        self._next_line = 0.0

    def __call__(self, method: str, url: str, **options: Any) -> Any:
        from kubernetes.client import ApiException
        from urllib3.exceptions import ProtocolError

        begun, num_busy, cut, renewed = time.monotonic(), 0, False, False
        while True:
            generation = self._credentials.generation
            try:
                return self._answer(method, url, options)
            except ProtocolError:
                if cut or method not in TWICE:
                    raise
                cut = True
            except ApiException as error:
                if error.status == UNAUTHORIZED and not renewed:
                    renewed = True
                    if not self._renew(generation, options):
                        raise
                    continue
                pause = _pause(error, method, num_busy)
                if pause is None or time.monotonic() - begun + pause > self._timings.busy:
                    raise
                num_busy += 1
                self._tell(pause, error)
                if not Waits.of_this_thread().wait(pause):
                    raise

    def _answer(self, method: str, url: str, options: dict[str, Any]) -> Any:
        """The API's; a page of whatever else listens there, as of a proxy, raises the error that says so."""
        from kubernetes.client import ApiException

        try:
            answer = self._send(method, url, **options)
        except UnicodeDecodeError:  # the client takes every answer for UTF-8
            raise ApiException(status=0, reason=NO_API) from None
        if "html" in (answer.getheader("Content-Type") or ""):
            raise ApiException(status=0, reason=NO_API)
        return answer

    def _renew(self, generation: int, options: dict[str, Any]) -> bool:
        """Whether the request may succeed with other credentials; it then carries them."""
        headers = dict(options.get("headers") or {})
        if not self._credentials.renew(generation, headers.get(AUTHORIZATION)):
            return False
        if self._credentials.header:
            headers[AUTHORIZATION] = self._credentials.header
        options["headers"] = headers
        with self._lock:
            if self._generation != self._credentials.generation:
                self._generation = self._credentials.generation
                self._client.rest_client = type(self._client.rest_client)(self._client.configuration)
        return True

    def _tell(self, pause: float, error: Any) -> None:
        with self._lock:
            tell = time.monotonic() >= self._next_line
            self._next_line = time.monotonic() + TELL_SECONDS if tell else self._next_line
        if tell:
            why = "has too many requests" if error.status == BUSY else "cannot answer now"
            print(
                f"{self._where} {why} (status {error.status}): asked again after {pause:.0f} s, for at most "
                f"{self._timings.busy:.0f} s",
                flush=True,
            )


def retry_after(error: BaseException) -> float | None:
    """Seconds after which the server wants to be asked again; None where it does not say."""
    headers: Mapping[str, str] = getattr(error, "headers", None) or {}
    given = next((value for name, value in headers.items() if name.lower() == "retry-after"), "").strip()
    return float(given) if given.isdecimal() else None


def _pause(error: Any, method: str, num_busy: int) -> float | None:
    """Seconds after which to send the request again; None: it must not be, or that would not help."""
    seconds = retry_after(error)
    if error.status == BUSY:
        seconds = min(FIRST_PAUSE * 2**num_busy, LONGEST_PAUSE) if seconds is None else seconds
    elif error.status is None or error.status < 500 or method not in TWICE:
        return None
    return None if seconds is None else max(seconds, SHORTEST_PAUSE) * random.SystemRandom().uniform(1, 1 + SPREAD)
