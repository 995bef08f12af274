"""Calls that end within a known time, whatever they wait for."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

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
