"""A run whose job was submitted to another place: another home, machine or cluster. Whether that job may still run.

What cannot be asked is unknown, and unknown is not gone: its records are not replaced, its files not removed, until a
person gives the job up. That takes a job that has shown no sign of life in the store for a while.
"""

import time
from dataclasses import dataclass

from train_func.client import registry
from train_func.client.backend import Backend, BoundJob
from train_func.client.status import JobStatus
from train_func.client.stored_run import FINISHED, OfRun, state_in_store, submitted
from train_func.client.submission import SubmissionRecord
from train_func.errors import InvalidInput, StorageFailed, TrainFuncError
from train_func.layout import RunKeys
from train_func.records import BEAT_SECONDS, SignOfLife
from train_func.storage import Readable, Store, find

SILENT_SECONDS = 4 * BEAT_SECONDS  # without another sign of life, after which a job counts as silent
LOOK_SECONDS = 0.5


@dataclass(frozen=True)
class Elsewhere:
    """The newest submission of a run, to a place that is not the one of ``here``."""

    record: OfRun
    store: Store
    here: Backend
    submission: SubmissionRecord
    job: BoundJob | None
    """None where it cannot be asked from here."""
    why: str
    """It cannot be asked, as far as an error says so."""

    @classmethod
    def of(cls, record: OfRun, store: Store, here: Backend) -> "Elsewhere | None":
        """None where the run was submitted to ``here``, or no record says where."""
        kept = SubmissionRecord.read(store, record.keys)
        if kept is None or kept.is_at(here):
            return None
        job, why = None, ""
        try:
            job = kept.job(record.keys.job_name)
            if job:
                job.status()
        except (TrainFuncError, KeyError, TypeError) as error:  # another machine's backend may have other options
            job, why = None, f" ({error})"
        return cls(record, store, here, kept, job, why)

    @property
    def keys(self) -> RunKeys:
        return self.record.keys

    @property
    def handle(self) -> str:
        """What is written there to have the handle on the job."""
        return f"attach({self.keys.name!r}, {self.submission.expression})"

    def may_run(self) -> bool:
        """Whether it is not known to have ended."""
        if self.job is not None:
            status = self.job.status()
            return status is not None and not (status.finished or status.interrupted or status.deleting)
        return state_in_store(self.store, self.record) not in FINISHED or self.lives()

    def lives(self) -> bool:
        """Whether it gives another sign of life while this is waited for; False at once where there was none."""
        key = self.keys.alive
        first = find(self.store, key)
        if first is None or _is_last(first.data):
            return False
        end = time.monotonic() + SILENT_SECONDS
        while time.monotonic() < end:
            time.sleep(LOOK_SECONDS)
            newest = find(self.store, key)
            if newest is None or newest.data != first.data:
                return newest is not None and not _is_last(newest.data)
        return False

    def __str__(self) -> str:
        what = f"{self.keys.name} was submitted to {self.submission.place} at {submitted(self.store, self.record)}"
        if self.job is not None:
            return f"{what}, and has not ended there: {self.handle} is its handle"
        return f"{what}, and whether it runs there cannot be asked from here{self.why}. {self._sign()}"

    def _sign(self) -> str:
        sign = find(self.store, self.keys.alive)
        try:
            last = SignOfLife.from_json(sign.data, self.keys.alive) if sign else None
        except StorageFailed:
            last = None
        return f"Its last sign of life, of {last.pod}, is of {last.time}" if last else "It has given no sign of life"

    @property
    def remedy(self) -> str:
        """What to do where it may run, and is not to."""
        if self.job is not None:
            return f"stop it there first: {self.handle}.cancel()"
        on = registry.expression(registry.name_of(self.here), self.here.found_by)
        return (
            f"look at it, or stop it, there: {self.handle}. Where that place is gone for good, "
            f"attach({self.keys.name!r}{on and f', {on}'}).cancel() gives the job up from here, unless it still gives "
            "signs of life"
        )


def status_here(job: BoundJob, record: OfRun, store: Readable, here: Backend) -> JobStatus | None:
    """The status of the job; None where it has ended and the run was submitted to another place since."""
    status = job.status()
    if status is None or not (status.finished or status.interrupted):
        return status
    newest = SubmissionRecord.read(store, record.keys)
    return status if newest is None or newest.is_at(here) else None


def refuse_elsewhere(record: OfRun, backend: Backend, store: Store) -> None:
    """Of two jobs of one run, in two places, only one could publish, and each would replace the other's records.

    Raises InvalidInput where a job of the run may run in another place.
    """
    other = Elsewhere.of(record, store, backend)
    if other and other.may_run():
        raise InvalidInput(f"{other}; to run it here, {other.remedy}")


def other_backend(store: Store, record: OfRun, backend: Backend) -> str:
    """Where else the job of the run may be, in words; empty when it was submitted to ``backend``."""
    keys = record.keys
    kept = SubmissionRecord.read(store, keys)
    if kept is None:
        others = [name for name in registry.BACKENDS if name != registry.name_of(backend)]
        tries = " or ".join(f"attach({keys.name!r}, on={name}(...))" for name in others)
        return (
            f"there is no job {keys.job_name} here, and no record says where the run was submitted: try "
            f"{tries}, or submit the run again"
        )
    if kept.is_at(backend):
        return ""
    return f"{keys.name} was submitted to {kept.place}: there, attach({keys.name!r}, {kept.expression}) is its handle"


def _is_last(sign: bytes) -> bool:
    try:
        return SignOfLife.from_json(sign, "the sign of life").is_over
    except StorageFailed:
        return False
