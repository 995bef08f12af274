"""The job of a run in another place: whether it may run there, and how a person gets to it.

A job that was submitted to another home, machine or cluster, and cannot be asked from here, is unknown, and unknown is
not gone: its run is neither submitted nor removed here until a person gives the job up. That takes a job that has shown
no sign of life in the store for a while.
"""

import time
from dataclasses import dataclass
from functools import cached_property

from train_func.client.backend import Backend, BoundJob
from train_func.client.stored_attempts import state_in_store
from train_func.client.stored_run import ENDED, Submission, how_to
from train_func.errors import InvalidInput, TrainFuncError
from train_func.storage import Store, find
from train_func.wire.layout import RunKeys
from train_func.wire.records import BEAT_SECONDS, SignOfLife

SILENT_SECONDS = 4 * BEAT_SECONDS  # without another sign of life, after which a job counts as silent
LOOK_SECONDS = 0.5


@dataclass(frozen=True)
class Elsewhere:
    """The newest submission of a run, which went to another place than ``here``."""

    keys: RunKeys
    store: Store
    here: Backend
    submission: Submission

    @classmethod
    def of(cls, keys: RunKeys, store: Store, here: Backend) -> "Elsewhere | None":
        """Returns None if the run was submitted to ``here``, or no record says where. Asks no other place yet."""
        newest = Submission.newest(store, keys)
        return None if newest is None or newest.is_at(here) else cls(keys, store, here, newest)

    @property
    def whereabouts(self) -> str:
        """Names the run, and says where its job is."""
        return f"{self.keys.name} {self.submission.whereabouts}"

    @property
    def job(self) -> BoundJob | None:
        """The job in that place; None where it cannot be asked from here."""
        return self._answer[0]

    @cached_property
    def _answer(self) -> tuple[BoundJob | None, str]:
        """The job, or the error that came when it was asked; neither where its place cannot be reached."""
        try:
            backend = self.submission.reachable()
            job = backend.job(self.keys.job_name) if backend else None
            if job:
                job.status()
            return job, ""
        except TrainFuncError as error:
            return None, f" ({error})"

    def may_run(self) -> bool:
        """Returns whether it is not known to have ended."""
        if self.job is not None:
            status = self.job.status()
            return status is not None and not (status.is_over or status.deleting)
        return state_in_store(self.store, self.keys) not in ENDED or self.lives()

    def lives(self) -> bool:
        """Waits for another sign of life, and returns whether it came; False at once where there was none before."""
        first = newest = self._sign_of_life()
        end = time.monotonic() + SILENT_SECONDS
        while newest and not newest.is_over and newest == first and time.monotonic() < end:
            time.sleep(LOOK_SECONDS)
            newest = self._sign_of_life()
        return newest is not None and not newest.is_over and newest != first

    def _sign_of_life(self) -> SignOfLife | None:
        sign = find(self.store, self.keys.alive)
        return SignOfLife.from_json(sign.data, f"{self.store.address}/{self.keys.alive}") if sign else None

    def __str__(self) -> str:
        what = f"{self.keys.name} was submitted to {self.submission.place} at {self.submission.run.submitted}"
        if self.job is not None:
            return f"{what}, and has not ended there"
        life = self._sign_of_life()
        last = f"Its last sign of life, of {life.pod}, is of {life.time}" if life else "It has given no sign of life"
        return f"{what}, and whether it runs there cannot be asked from here{self._answer[1]}. {last}"

    @property
    def remedy(self) -> str:
        """What to do where it may run, and is not to."""
        if self.job is not None:
            return f"stop it there first: `{self.submission.how_to('cancel')}`"
        return (
            f"stop it there: `{self.submission.how_to('cancel')}`. Where that place is gone for good, "
            f"`{how_to('cancel', self.keys.name, self.here, self.store.address)}` gives the job up from here, unless "
            "it still gives signs of life"
        )


def whereabouts(keys: RunKeys, store: Store, here: Backend) -> str:
    """Returns where else the job of a run is, in words; empty when it was submitted ``here``."""
    other = Elsewhere.of(keys, store, here)
    return other.whereabouts if other else ""


def refuse_elsewhere(keys: RunKeys, backend: Backend, store: Store) -> None:
    """Refuses to start a job of the run beside another one: each would replace the other's records.

    Raises InvalidInput where a job of the run may run in another place, StorageFailed where its record is damaged.
    """
    other = Elsewhere.of(keys, store, backend)
    if other and other.may_run():
        raise InvalidInput(f"{other}; to run it here, {other.remedy}")
