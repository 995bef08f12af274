"""The kubernetes client with time limits, retries for a busy server, and credentials that are read again.

The first connection imports it, because importing kubernetes takes a second.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

from kubernetes.client import ApiClient, ApiException, Configuration
from kubernetes.client.rest import RESTClientObject
from urllib3.exceptions import MaxRetryError, ProtocolError
from urllib3.util import Retry

from train_func.client.cluster.api_errors import NO_API

REPEATABLE = ("GET", "DELETE")  # a POST is never sent again when it may have been done
BUSY, UNAVAILABLE, UNAUTHORIZED = 429, 503, 401
NUM_TRIES = 8  # of a busy server: with pauses that double up to LONGEST_PAUSE_SECONDS that is less than a minute
LONGEST_PAUSE_SECONDS = 10.0
LONGEST_WAIT_SECONDS = 30.0  # that a server may ask for
CONNECT_SECONDS, ANSWER_SECONDS = 3.0, 10.0
READ_AGAIN_SECONDS = 30.0  # at least, between two readings of credentials: a plugin may ask a person


class BusyRetry(Retry):
    """Repeats requests that a busy server refused, unless it asks for a long wait."""

    def is_retry(self, method: str, status_code: int, has_retry_after: bool = False) -> bool:
        """Returns whether the server may accept the same request later."""
        return status_code == BUSY or (status_code == UNAVAILABLE and has_retry_after and method in REPEATABLE)

    def increment(self, *arguments: Any, **options: Any) -> "BusyRetry":
        """Returns the remaining retries after an attempt; raises if there are none."""
        response = options.get("response")
        is_eviction = str(arguments[1]).partition("?")[0].endswith("/eviction")  # which a budget refuses by 429, too
        if response is not None and (is_eviction or (self.get_retry_after(response) or 0) > LONGEST_WAIT_SECONDS):
            raise MaxRetryError(options["_pool"], "")
        return super().increment(*arguments, **options)

    def sleep(self, response: Any = None) -> None:
        """Waits as long as the server asks, and longer after each attempt."""
        if response is not None:
            time.sleep(max(self.get_retry_after(response) or 0, min(2 ** len(self.history) / 4, LONGEST_PAUSE_SECONDS)))


class Client(ApiClient):
    """Sends a request again with newly read credentials if the server refuses the first ones."""

    configuration: Configuration
    rest_client: RESTClientObject

    def __init__(self, configuration: Configuration, read: Callable[[], Configuration]) -> None:
        """``read`` returns a new Configuration from the source of the first one."""
        self._read = read
        self._lock = threading.Lock()
        self._next_reading = 0.0
        super().__init__(_prepare(configuration))

    def request(self, method: str, url: str, **options: Any) -> Any:
        """Sends one request, and returns the answer of the API."""
        seconds = options.get("_request_timeout") or ANSWER_SECONDS
        options["_request_timeout"] = min(seconds, CONNECT_SECONDS), seconds
        sent_with = self.configuration
        try:
            return self._answer(method, url, options)
        except ApiException as error:
            if error.status != UNAUTHORIZED or not self._renew(sent_with):
                raise
        tokens = {setting["key"]: setting["value"] for setting in self.configuration.auth_settings().values()}
        return self._answer(method, url, {**options, "headers": {**options["headers"], **tokens}})

    def _answer(self, method: str, url: str, options: dict[str, Any]) -> Any:
        try:
            try:
                answer = super().request(method, url, **options)
            except ProtocolError:  # the server had closed a connection that was kept open
                if method not in REPEATABLE:
                    raise
                answer = super().request(method, url, **options)
        except UnicodeDecodeError:  # the client takes every answer for UTF-8
            raise ApiException(status=0, reason=NO_API) from None
        if "html" in (answer.getheader("Content-Type") or ""):  # a proxy's page
            raise ApiException(status=0, reason=NO_API)
        return answer

    def _renew(self, refused: Configuration) -> bool:
        """Returns whether there are other credentials now."""
        with self._lock:
            if self.configuration is not refused:
                return True
            if time.monotonic() < self._next_reading:
                return False
            self._next_reading = time.monotonic() + READ_AGAIN_SECONDS
            with contextlib.suppress(Exception):  # the server's refusal says what to do
                configuration = _prepare(self._read())
                if configuration.api_key or configuration.cert_file:
                    self.configuration, self.rest_client = configuration, RESTClientObject(configuration)
            return self.configuration is not refused


def _prepare(configuration: Configuration) -> Configuration:
    """Sets options that a kubeconfig does not have."""
    # A token in a file has an end of line, as `kubectl create token` writes it.
    configuration.api_key = {name: value.strip() for name, value in configuration.api_key.items()}
    configuration.connection_pool_maxsize = 16  # as many as are asked at once: urllib3 warns of more
    configuration.refresh_api_key_hook = None  # it would run a plugin with each request of a token's last five minutes
    configuration.retries = BusyRetry(
        total=None, status=NUM_TRIES, connect=0, read=False, redirect=0, other=0, raise_on_status=False
    )
    return configuration
