"""Sends the alerts of a job: as events to the log of the lead, and to the webhook if the job has one.

It also sends the progress of a TrainJob to its operator.
"""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from train_func.wire.events import Alert, Event
from train_func.wire.records import Verdict
from train_func.worker import masks
from train_func.worker.environment import WEBHOOK, Environment
from train_func.worker.rank import reporting
from train_func.worker.rank.marks import Mark
from train_func.worker.supervisor.alerts.poster import Poster, post_json
from train_func.worker.supervisor.alerts.rules import AlertRules
from train_func.worker.supervisor.alerts.trainjob_status import TrainJobStatus

MOST_ALERTS = 100  # that wait to be posted
SEND_SECONDS = 5.0  # for what is posted last, at the end of the worker


class Alerter:
    """Applies the rules to the events of a lead; any thread may call it. No error of it reaches the training."""

    def __init__(self, environment: Environment) -> None:
        self._rules, self._lock = AlertRules(), threading.Lock()
        self._webhook = Webhook(environment.webhook, environment.run_name) if environment.webhook else None
        self._status = TrainJobStatus(environment.status_server) if environment.status_server else None
        self._has_failed = False

    def hear(self, event: Event) -> None:
        """Takes an event of the log."""
        if not isinstance(event, Alert):
            self._say(lambda: self._rules.hear(event), lambda status: status.hear(event))

    def look(self, mark: Mark, hang_after: float) -> None:
        """Takes the last sign of progress of rank 0."""
        self._say(lambda: self._rules.look(mark, hang_after))

    def end(self, verdict: Verdict, root: Verdict) -> None:
        """Takes the verdict on an attempt; ``root``: the verdict on the worker whose end came first."""
        self._say(lambda: self._rules.end(verdict, root))

    def succeed(self, metrics: Mapping[str, Any]) -> None:
        """Takes the numbers of the result."""
        self._say(lambda: self._rules.succeed(metrics), lambda status: status.succeed(masks.mask(metrics)))

    def flush(self, seconds: float) -> None:
        """Waits until everything is sent, at most ``seconds``."""
        until = time.monotonic() + min(seconds, SEND_SECONDS)
        for target in (self._webhook, self._status):
            if target:
                target.flush(max(0.0, until - time.monotonic()))

    def _say(
        self, apply: Callable[[], list[Alert]], tell: Callable[[TrainJobStatus], object] = lambda status: None
    ) -> None:
        try:
            with self._lock:
                if self._status:
                    tell(self._status)
                alerts = apply()
            for alert in alerts:
                reporting.say(alert)
                if self._webhook:
                    self._webhook.send(masks.mask(alert))
        except Exception as error:
            if not self._has_failed:
                self._has_failed = True
                reporting.note(
                    f"an alert could not be made, and no more is said of such: {type(error).__name__}: {error}"
                )


class Webhook:
    """Posts each alert to an address that only the workers know."""

    def __init__(self, address: str, run: str) -> None:
        self._address, self._run = address, run
        self._poster = Poster("an alert", WEBHOOK, most=MOST_ALERTS)
        self.flush = self._poster.flush

    def send(self, alert: Alert) -> None:
        """Queues an alert; returns at once."""
        body = {
            "text": _text_of(self._run, alert),
            "run": self._run,
            "alert": alert.kind,
            "message": alert.message,
            "remedy": alert.remedy,
            "step": alert.step,
            "time": alert.time,
        }
        self._poster.send(lambda: post_json(self._address, body))


def _text_of(run: str, alert: Alert) -> str:
    """Returns the alert as one line for a person."""
    first, _, more = alert.message.partition("\n")
    parts = [f"{first} ..." if more else first]
    if alert.step and f"step {alert.step}" not in first:
        parts.append(f"after step {alert.step}")
    if alert.remedy:
        parts.append(f"next: {alert.remedy}")
    return f"{run}: {'; '.join(parts)}"
