"""The webhook of a job: posts each alert to an address that only the workers know."""

from train_func.wire.events import Alert
from train_func.worker.environment import WEBHOOK
from train_func.worker.supervisor.alerts.poster import Poster, post_json

MOST_ALERTS = 100  # that wait to be posted


class Webhook:
    """Posts alerts one after the other."""

    def __init__(self, address: str, run: str) -> None:
        self._address, self._run = address, run
        self._poster = Poster("an alert", WEBHOOK, most=MOST_ALERTS)
        self.flush = self._poster.flush

    def send(self, alert: Alert) -> None:
        """Queues an alert; returns at once."""
        body = {
            "text": text_of(self._run, alert),
            "run": self._run,
            "alert": alert.kind,
            "message": alert.message,
            "remedy": alert.remedy,
            "step": alert.step,
            "time": alert.time,
        }
        self._poster.send(lambda: post_json(self._address, body))


def text_of(run: str, alert: Alert) -> str:
    """Returns the alert as one line for a person."""
    first, _, more = alert.message.partition("\n")
    parts = [f"{first} ..." if more else first]
    if alert.step and f"step {alert.step}" not in first:
        parts.append(f"after step {alert.step}")
    if alert.remedy:
        parts.append(f"next: {alert.remedy}")
    return f"{run}: {'; '.join(parts)}"
