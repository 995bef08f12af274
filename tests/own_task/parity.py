"""A task of a user's own, in a module of their own: whether a number is even, read from its bits."""

from dataclasses import dataclass
from typing import ClassVar

from train_func.fields import whole_fault
from train_func.tasks import Task


@dataclass(frozen=True, kw_only=True)
class Parity(Task):
    """Numbers from 0, and whether they are even."""

    worker: ClassVar[str] = "parity_worker:ParityWorker"

    numbers: int = 40
    """How many there are."""

    def faults(self):
        fault = whole_fault("numbers", self.numbers, 10, 10_000)
        return [fault] if fault else []
