"""What hinders a job, as a backend shows it: one shape for what is found in pods, in events, and by preflight."""

from dataclasses import dataclass

from train_func.errors import Cause


@dataclass(frozen=True)
class Diagnosis:
    """Something that keeps a job from going on, or that befell one of its workers."""

    cause: Cause
    message: str
    """In one or a few lines, with the cluster's own words."""
    remedy: str = ""
    """What to do about it."""
    permanent: bool = False
    """Whether waiting cannot help, and only a change can."""
    said: str = ""
    """Of a worker's end: what the worker itself has said of it."""

    @property
    def headline(self) -> str:
        """Its first line, without the table or whatever else may follow."""
        return self.message.partition("\n")[0]

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
