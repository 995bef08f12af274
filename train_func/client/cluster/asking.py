"""One question to the API by its path, answered as plain JSON; several at once, none for longer than there is time."""

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from train_func.client.cluster.access import Access
from train_func.client.cluster.waits import Waits

Json = dict[str, Any]
T = TypeVar("T")
LOOK_SECONDS = 0.2


def get(access: Access, path: str, *, seconds: float = 4.0, **query: str) -> Json:
    """Raises kubernetes' ApiException, or urllib3's HTTPError."""
    return _call(access, "GET", path, None, seconds, query)


def post(access: Access, path: str, body: Mapping[str, Any], *, seconds: float = 4.0, **query: str) -> Json:
    """Raises kubernetes' ApiException, or urllib3's HTTPError."""
    return _call(access, "POST", path, body, seconds, query)


def run_concurrently(calls: Sequence[Callable[[], T]], seconds: float) -> list[T | Exception]:
    """What each of ``calls`` returned or raised, in their order; TimeoutError for those that were not done in time.

    They run in threads of their own, which are left behind then: a silent name server ends no earlier. Time for which
    a busy server asked to be left alone, and that in which credentials are read, is not counted.
    """
    futures: list[tuple[Future[T], Waits]] = [(Future(), Waits()) for _ in calls]
    end = time.monotonic() + seconds
    for call, (future, waits) in zip(calls, futures, strict=True):
        threading.Thread(target=_settle, args=(call, future, waits), name="preflight", daemon=True).start()
    outcomes: list[T | Exception] = []
    for future, waits in futures:
        outcome = _outcome(future, end, waits)
        outcomes.append(outcome)
    return outcomes


def _settle(call: Callable[[], T], future: "Future[T]", waits: Waits) -> None:
    waits.count()
    try:
        future.set_result(call())
    except Exception as error:
        future.set_exception(error)


def _outcome(future: "Future[T]", end: float, waits: Waits) -> T | Exception:
    while not future.done() and (left := end + waits.seconds - time.monotonic()) > 0:
        with contextlib.suppress(TimeoutError):
            future.exception(min(left, LOOK_SECONDS))  # what was lent may be taken back meanwhile
    try:
        return future.result(0)
    except Exception as error:
        return error


def _call(
    access: Access, method: str, path: str, body: Mapping[str, Any] | None, seconds: float, query: Mapping[str, str]
) -> Json:
    answer, _, _ = access.client.call_api(
        path,
        method,
        query_params=list(query.items()),
        header_params={"Accept": "application/json", "Content-Type": "application/json"},
        body=body,
        response_type="object",
        auth_settings=["BearerToken"],
        _request_timeout=(min(seconds, 3.0), seconds),
    )
    plain: Json = answer
    return plain
