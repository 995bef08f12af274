"""The webhook of a job: each alert is posted to an address that only the workers know, in a thread of its own.

A service that is away, refuses or hangs costs the training nothing. Its address is a credential, so that no message
names it, nor what a library says of it.
"""

import json
import queue
import threading
import time

from train_func.wire.events import Alert
from train_func.worker.environment import WEBHOOK
from train_func.worker.rank import reporting

POST_SECONDS = 4.0  # for the service to answer
MOST_ALERTS = 100  # that wait to be posted


class Webhook(threading.Thread):
    """Posts alerts one after the other."""

    def __init__(self, address: str, run: str) -> None:
        super().__init__(name="webhook", daemon=True)
        self._address, self._run = address, run
        self._alerts: queue.Queue[Alert] = queue.Queue(MOST_ALERTS)
        self._has_failed = False
        self.start()

    def send(self, alert: Alert) -> None:
        """Has it posted soon; returns at once."""
        if not self._alerts.full():
            self._alerts.put(alert)

    def flush(self, seconds: float) -> None:
        """Returns when all alerts were posted, or after ``seconds``."""
        until = time.monotonic() + seconds
        while self._alerts.unfinished_tasks and time.monotonic() < until:
            time.sleep(0.02)

    def run(self) -> None:
        while True:
            alert = self._alerts.get()
            try:
                self._post(alert)
            except Exception as error:
                if not self._has_failed:
                    self._has_failed = True
                    reporting.note(f"an alert was not sent: the service that {WEBHOOK} names {_words(error)}")
            finally:
                self._alerts.task_done()

    def _post(self, alert: Alert) -> None:
        from urllib.request import Request, urlopen  # most jobs have no webhook

        if not self._address.startswith(("http://", "https://")):
            raise ValueError("no address of the web")
        body = {
            "text": text_of(self._run, alert),
            "run": self._run,
            "alert": alert.kind,
            "message": alert.message,
            "remedy": alert.remedy,
            "step": alert.step,
            "time": alert.time,
        }
        headers = {"Content-Type": "application/json", "User-Agent": "train_func"}
        with urlopen(Request(self._address, json.dumps(body).encode(), headers), timeout=POST_SECONDS):
            pass


def text_of(run: str, alert: Alert) -> str:
    """Returns the alert as one line for a person."""
    first, _, more = alert.message.partition("\n")
    parts = [f"{first} ..." if more else first]
    if alert.step and f"step {alert.step}" not in first:
        parts.append(f"after step {alert.step}")
    if alert.remedy:
        parts.append(f"next: {alert.remedy}")
    return f"{run}: {'; '.join(parts)}"


def _words(error: Exception) -> str:
    """Returns what has failed, in words that a library has not made of the address."""
    from urllib.error import HTTPError

    if isinstance(error, HTTPError):
        return f"answered {error.code}"
    cause = getattr(error, "reason", error)
    if isinstance(cause, TimeoutError):
        return f"did not answer within {POST_SECONDS:g} s"
    if isinstance(cause, OSError) and cause.strerror and cause.errno:
        return f"cannot be reached: {type(cause).__name__} {cause.errno}"
    if isinstance(cause, ValueError):
        return "has no address that begins with http:// or https://"
    return f"cannot be reached: {type(cause).__name__}"
