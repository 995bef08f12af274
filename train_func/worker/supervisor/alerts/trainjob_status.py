"""The status of a TrainJob: how far its training is, as ``kubectl get trainjob`` shows it in ``status.trainerStatus``.

Kubeflow Trainer with its feature TrainJobStatus gives each pod the address for it; a post replaces the last one. Only a
training with a known number of steps has such a status. transformers' own Trainer posts by itself.
"""

from collections.abc import Mapping
from typing import Any

from train_func.wire.events import Event, StepProgress, now
from train_func.wire.metrics import row_of
from train_func.worker.environment import STATUS_SERVER, StatusServer
from train_func.worker.supervisor.alerts.poster import Poster, post_json

INTERVAL = 5.0  # seconds between two posts, at least: each is a change of an object of the cluster
MOST_METRICS, LONGEST_TEXT = 256, 64  # more, or longer names, and the server refuses all of it
MOST_SECONDS = 2**31 - 1


class TrainJobStatus:
    """Makes a status of the events of a job, and posts the newest one; not for several threads at once."""

    def __init__(self, server: StatusServer) -> None:
        self._server = server
        self._poster = Poster("the progress of the TrainJob", STATUS_SERVER, most=1, pause=INTERVAL)
        self._progress: StepProgress | None = None
        self._metrics: dict[str, str] = {}
        self.flush = self._poster.flush

    def hear(self, event: Event) -> None:
        """Takes an event of the log."""
        if isinstance(event, StepProgress):
            self._progress = event
            self._take({"epoch": event.epoch, "rows_per_second": event.rows_per_second, "loss": event.loss})
        elif row := row_of(event):
            self._take(row.values)
        else:
            return
        if progress := self._progress:  # a training of all steps has no result yet
            percentage = min(99, 100 * progress.step // max(1, progress.num_steps))
            left = progress.seconds_left
            self._send(percentage, None if left is None else min(round(left), MOST_SECONDS), event.time)

    def succeed(self, metrics: Mapping[str, Any]) -> None:
        """Takes the numbers of the result."""
        self._take(metrics)
        if self._progress:
            self._send(100, 0, now())

    def _take(self, values: Mapping[str, Any]) -> None:
        """Stores the numbers among the values, as texts, under at most MOST_METRICS names."""
        for name, value in values.items():
            short = name[:LONGEST_TEXT]
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if short and is_number and (short in self._metrics or len(self._metrics) < MOST_METRICS):
                self._metrics[short] = f"{value:.6g}" if isinstance(value, float) else f"{value}"

    def _send(self, percentage: int, seconds_left: int | None, time: str) -> None:
        status = {
            "progressPercentage": percentage,
            **({} if seconds_left is None else {"estimatedRemainingSeconds": seconds_left}),
            "metrics": [{"name": name, "value": value} for name, value in self._metrics.items()],
            "lastUpdatedTime": time,
        }

        def post() -> None:
            server = self._server
            token = {"Authorization": f"Bearer {server.token.read_text().strip()}"}  # it is replaced within an hour
            post_json(server.address, {"trainerStatus": status}, token, server.authority)

        self._poster.send(post)
