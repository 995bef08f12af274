"""A backend that cannot be asked any more while somebody waits for a job: told when it begins, and when it is over."""

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
    """Why nothing is heard of one job, for one who waits."""

    def __init__(self) -> None:
        self.current: list[Diagnosis] = []
        """It, if that is so at the moment."""

    def news(self, error: InvalidInput | None) -> list[Diagnosis]:
        """What is to be told now, given why nothing is heard of the job."""
        before, self.current = self.current, [_trouble(error)] if error else []
        if [diagnosis.cause for diagnosis in before] == [diagnosis.cause for diagnosis in self.current]:
            return []
        return self.current or [Diagnosis("cluster", "the job is heard of again: what is shown is up to date")]


def _trouble(error: InvalidInput) -> Diagnosis:
    what = f"nothing new is heard of the job: {error}"
    return Diagnosis(error.cause, what, "the job itself goes on, and so does this as soon as the cluster lets it")
