"""A backend that cannot be asked any more while a caller waits for a job: told when it begins, and when it is over."""

from collections.abc import Callable

from train_func.client.diagnose.diagnosis import Diagnosis
from train_func.errors import Cause, InvalidInput

# Of errors that say nothing about the job: it goes on, and so does the waiting.
OF_THE_BACKEND: tuple[Cause, ...] = ("permission", "cluster")


def patiently(ask: Callable[[], str], before: str) -> str:
    """The answer; the one ``before`` while the backend is away, or refuses what it has allowed so far."""
    try:
        return ask()
    except InvalidInput as error:
        if error.cause not in OF_THE_BACKEND:
            raise
        return before


class ApiOutage:
    """Why there is no news of one job, for a caller that waits."""

    def __init__(self) -> None:
        self.current: list[Diagnosis] = []
        """It, if that is so at the moment."""

    def news(self, error: InvalidInput | None) -> list[Diagnosis]:
        """What is to be told now, given why there is no news of the job."""
        before, self.current = self.current, [_diagnosis(error)] if error else []
        if [diagnosis.cause for diagnosis in before] == [diagnosis.cause for diagnosis in self.current]:
            return []
        return self.current or [Diagnosis("cluster", "reconnected to the cluster: what is shown is up to date")]


def _diagnosis(error: InvalidInput) -> Diagnosis:
    what = f"no news of the job: {error}"
    return Diagnosis(error.cause, what, "the job keeps running; this goes on as soon as the cluster answers")
