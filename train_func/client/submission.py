"""The record of a submission: the backend that a run was submitted to, and with which options."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from train_func.client import registry
from train_func.client.backend import Backend, BoundJob, Submission
from train_func.codec import Record
from train_func.errors import StorageFailed
from train_func.layout import RunKeys
from train_func.storage import Readable, find


@dataclass(frozen=True, kw_only=True)
class SubmissionRecord(Record):
    """Written before the job is created."""

    FORMAT = 2

    backend: str
    """Its registered name."""
    place: str
    """As the backend calls it."""
    identity: Mapping[str, str]
    """Of that place, as the backend's own."""
    found_by: Mapping[str, Any]
    """The options that lead to the job, by name."""
    options: Mapping[str, Any]
    """All options that the job was submitted with, by name."""

    @classmethod
    def of(cls, backend: Backend, submission: Submission) -> Self:
        """The record of a submission to ``backend``."""
        return cls(
            backend=registry.name_of(backend),
            place=backend.place,
            identity=backend.identity,
            found_by=submission.found_by,
            options=submission.options,
        )

    @classmethod
    def read(cls, store: Readable, keys: RunKeys) -> Self | None:
        """The newest submission of a run; None where there is no record that this version reads."""
        submission = find(store, keys.submission)
        try:
            return cls.from_json(submission.data, keys.submission) if submission else None
        except StorageFailed:
            return None

    def is_at(self, backend: Backend) -> bool:
        """Whether it was submitted to where the jobs of ``backend`` are."""
        if self.backend != registry.name_of(backend):
            return False
        there = backend.identity
        kind = next((kind for kind in there if kind in self.identity), None)
        return kind is not None and there[kind] == self.identity[kind]

    @property
    def expression(self) -> str:
        """The argument of ``attach`` that leads to the job."""
        return registry.expression(self.backend, self.found_by) or f"on={self.backend}()"

    def job(self, name: str) -> BoundJob | None:
        """The job of that name where it was submitted to; None where that is no place that can be asked from here.

        Raises KeyError when that kind of backend is not registered here.
        """
        backend = registry.make(self.backend, self.found_by)
        return backend.job(name) if self.is_at(backend) else None

    def differing(self, now: Mapping[str, Any]) -> list[str]:
        """The options that differ from ``now``, each as it was then, such as ``cpu='2'``."""
        was = self.options
        return [f"{name}={was.get(name)!r}" for name in {**was, **now} if was.get(name) != now.get(name)]
