"""The confusion matrix of a published model on the rows that its run has held out."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from train_func.client.job import Job
from train_func.errors import InvalidInput
from train_func.storage import Store
from train_func.text import listed
from train_func.worker.inputs.cache import machine_cache
from train_func.worker.tasks.protocol import Classifies, worker_half


@dataclass(frozen=True)
class Confusion:
    """How many rows of each class, one line for each, were taken for each."""

    labels: Sequence[str]
    matrix: list[list[int]]

    @property
    def num_rows(self) -> int:
        return sum(map(sum, self.matrix))

    @property
    def accuracy(self) -> float:
        """The share of the rows that is right."""
        return sum(row[number] for number, row in enumerate(self.matrix)) / self.num_rows


def confusion_of(job: Job, store: Store) -> Confusion | None:
    """Of the job's published model; None where rows of its task have not one class each.

    Raises:
        InvalidInput: the data are others than those that the run was trained with, or the classes of the model others
            than those of the rows.
    """
    record = job.record
    half = worker_half(record.run, store, machine_cache(os.environ))
    if not isinstance(half, Classifies) or not half.has_one_class:
        return None
    rows = half.rows()
    if changed := [name for name, of in rows.fingerprints.items() if record.fingerprints.get(name) != of]:
        raise InvalidInput(
            f"{', '.join(changed)} of {record.name} is not what it was trained with: its held-out rows cannot be told "
            "from the others any more. Bring the data back, or submit the run again with those there are now",
            cause="data",
        )
    numbers = {label: number for number, label in enumerate(rows.labels)}
    matrix = [[0] * len(rows.labels) for _ in rows.labels]
    told = half.classes(job.load(), rows.held_out)
    if others := sorted({*told} - {*numbers}):
        raise InvalidInput(
            f"the model of {record.name} tells the classes {listed(others)}, and its rows have {listed(rows.labels)}: "
            "train the model that session.model() gives, or publish one whose config names the same classes",
            cause="model",
        )
    for truth, taken_for in zip(rows.held_out["label"], told, strict=True):
        matrix[truth][numbers[taken_for]] += 1
    return Confusion(rows.labels, matrix)
