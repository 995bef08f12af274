"""Whether the logs of a job may be read, as those find out who read them side by side."""

import time

from train_func.client.cluster.informer import TROUBLE_SECONDS


class LogAccess:
    """Of one job; a right that comes back is noticed by whoever tries again."""

    def __init__(self) -> None:
        self._allowed = False
        self._refused: tuple[BaseException, float] | None = None

    def allowed(self) -> None:
        """A log was opened."""
        self._allowed, self._refused = True, None

    def refused(self, error: BaseException) -> bool:
        """It was not; whether to try again: it was allowed before, or the server may only just have started."""
        _, since = self._refused = self._refused or (error, time.monotonic())
        return self._allowed or time.monotonic() - since < TROUBLE_SECONDS

    @property
    def outage(self) -> BaseException | None:
        """Why they cannot be read, if that lasts."""
        error, since = self._refused or (None, 0.0)
        return error if time.monotonic() - since >= TROUBLE_SECONDS else None
