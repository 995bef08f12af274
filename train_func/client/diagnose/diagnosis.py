"""What hinders a job: one shape for what pods, events and the preflight show."""

from dataclasses import dataclass

from train_func.errors import Cause


@dataclass(frozen=True)
class Diagnosis:
    """Something that stops a job from continuing, or that happened to one of its workers."""

    cause: Cause
    message: str
    """One or a few lines, with the cluster's own words."""
    remedy: str = ""
    """What to do about it."""
    permanent: bool = False
    """Whether only a change can help, once it has lasted."""
    worker_message: str = ""
    """For the end of a worker: what the worker itself wrote about it."""

    @property
    def kind(self) -> object:
        """What stays the same while numbers and workers in the message change."""
        return self.cause, self.permanent, self.remedy

    def __str__(self) -> str:
        return f"{self.message}\n  next: {self.remedy}" if self.remedy else self.message


def workers(numbers: list[int]) -> str:
    """``worker 0``, ``workers 0, 2`` or ``workers 0 to 199``."""
    numbers = sorted(set(numbers))
    if len(numbers) == 1:
        return f"worker {numbers[0]}"
    if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"workers {numbers[0]} to {numbers[-1]}"
    shown = ", ".join(map(str, numbers[:6]))
    return f"workers {shown}" + (f" and {len(numbers) - 6} more" if len(numbers) > 6 else "")
