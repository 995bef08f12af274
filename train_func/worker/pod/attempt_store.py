"""The attempts of a run in the store: who claims the next number, how they ended, and when there are enough.

An attempt is charged unless it was stopped from outside or its group never formed. Numbers go on as long as the
generation lasts; the count begins anew with each submission.
"""

from dataclasses import asdict, dataclass

from train_func import exits
from train_func.attempt_records import EndRecord, Lease, Verdict
from train_func.counted import counted
from train_func.errors import StorageFailed
from train_func.events import AttemptStarts, now
from train_func.layout import RunKeys
from train_func.records import RunRecord
from train_func.storage import Store
from train_func.worker.pod.environment import Environment
from train_func.worker.pod.rank_end import RankEnd, records_of

_FREE = {exits.STOPPED, exits.RENDEZVOUS}


@dataclass(frozen=True)
class Account:
    """What the starts so far leave over."""

    num_started: int
    """Attempts of this submission."""
    num_charged: int
    max_attempts: int
    last: Verdict | None
    """The newest charged end that is known."""

    @property
    def spent(self) -> bool:
        return self.num_charged >= self.max_attempts

    @property
    def at_most(self) -> int:
        """Attempts that this submission may have in all if none is stopped from outside from now on."""
        return self.num_started + self.max_attempts - self.num_charged

    def verdict(self, worker: int, own: Verdict | None = None) -> Verdict:
        """The final verdict of a run that is out of attempts."""
        last = own or self.last
        ended = f"The last one: {last.message}" if last else "The last one left no record, as after SIGKILL"
        message = (
            f"{self.num_charged} of {counted(self.max_attempts, 'attempt')} made no progress. {ended}. "
            "Fix the cause and submit again, or allow more with max_attempts"
        )
        return Verdict(exits.SPENT, last.cause if last else "killed", message, worker)


@dataclass(frozen=True)
class Start:
    """What worker 0 says to the others before any rank starts."""

    lease: Lease
    num_started: int
    at_most: int
    refused: Verdict | None

    def event(self, environment: Environment) -> AttemptStarts:
        """What is said of it."""
        return AttemptStarts(
            attempt=self.lease.attempt,
            position=self.num_started + 1,
            at_most=self.at_most,
            num_workers=environment.num_workers,
            num_ranks=environment.num_workers * environment.num_ranks,
            num_threads=environment.num_threads,
        )


class Attempts:
    """The attempts of one generation of one run, seen by one worker."""

    def __init__(self, store: Store, record: RunRecord, *, worker: int, pod: str, pod_uid: str = "") -> None:
        self._store = store
        self._record = record
        self._worker = worker
        self._pod = pod
        self._pod_uid = pod_uid

    def claim(self) -> Lease:
        """Takes the next free number; of several claimants at once each gets its own."""
        number = max(self._workers_ended(), default=0) + 1
        while not self._put(lease := self.lease(number)):
            number += 1
        return lease

    def claim_unformed(self) -> Lease:
        """The number for the end of this worker when no group has formed: one for all workers that end so."""
        number = max(self._workers_ended(), default=1)
        while not self._put(lease := self.lease(number, formed=False)) and not self._may_join(number):
            number += 1
        return lease

    def _put(self, lease: Lease) -> bool:
        try:
            self._store.put(self._keys.attempt(lease.attempt).lease, lease.to_json(), if_absent=True)
        except StorageFailed as failure:
            if failure.reason != "conflict":
                raise
            return False
        return True

    def _may_join(self, number: int) -> bool:
        """Whether no group has formed under it either, and this worker has not ended under it yet."""
        lease = self._lease_of(number)
        if lease is None or lease.formed or lease.submitted != self._record.submitted:
            return False
        return self._worker not in self._workers_ended().get(number, [])

    def lease(self, number: int, *, formed: bool = True) -> Lease:
        """This worker's claim of a number."""
        record = self._record
        return Lease(
            attempt=number,
            generation=record.generation,
            pod=self._pod,
            pod_uid=self._pod_uid,
            worker=self._worker,
            submitted=record.submitted,
            started=now(),
            formed=formed,
        )

    def account(self, current: int | None = None) -> Account:
        """Counts the attempts of this submission; ``current`` is counted however its workers end.

        Only without the time of the submission a final end before tells of a new one: a worker writes down that it is
        done and may be lost with its group all the same. Progress will end the count here as well, once there are
        checkpoints to tell of it.
        """
        submitted = self._record.submitted
        ended = self._workers_ended()
        num_started, num_charged, last = 0, 0, None
        for number in sorted(ended, reverse=True):
            lease = self._lease_of(number) if number != current else None
            if number != current and (lease is None or lease.submitted != submitted):
                break
            ends = sorted(self._ends(number, ended[number]), key=lambda end: not end.root_cause)
            if number != current and not submitted and any(not exits.retryable(end.exit_code) for end in ends):
                break
            num_started += 1
            if not any(end.exit_code in _FREE for end in ends):
                num_charged += 1
                last = last or next(iter(ends), None)
        return Account(num_started, num_charged, self._record.run.max_attempts, last)

    def end_keys(self) -> set[str]:
        """Keys of all end records there are now."""
        ended = self._workers_ended()
        return {self._keys.attempt(number).end(worker) for number, workers in ended.items() for worker in workers}

    def final_end(self, known: set[str]) -> Verdict | None:
        """A final verdict that was recorded since ``end_keys`` returned ``known``."""
        new = (self._end(key) for key in sorted(self.end_keys() - known))
        return next((end for end in new if end and not end.retryable), None)

    def root_of(self, number: int) -> Verdict | None:
        """The verdict on this attempt by the worker it began with, when that worker has recorded its end."""
        ends = self._ends(number, self._workers_ended().get(number, []))
        return next((end for end in ends if end.root_cause and end.exit_code != 0), None)

    def is_published(self) -> bool:
        """Whether the run has a result; a worker that starts again then has nothing left to do."""
        return bool(self._store.list(self._record.keys.result))

    def write_end(self, lease: Lease, verdict: Verdict, ends: list[RankEnd]) -> None:
        """Writes this worker's end record."""
        claim = {**asdict(lease), "worker": self._worker, "pod": self._pod, "pod_uid": self._pod_uid}
        record = EndRecord(**{**asdict(verdict), **claim}, ended=now(), ranks=records_of(ends))
        self._store.put(self._keys.attempt(lease.attempt).end(self._worker), record.to_record())

    def put_log(self, number: int, log: bytes) -> None:
        """Replaces this worker's log of the attempt."""
        self._store.put(self._keys.attempt(number).log(self._worker), log)

    @property
    def _keys(self) -> RunKeys:
        return self._record.keys

    def _workers_ended(self) -> dict[int, list[int]]:
        """By each number that has a lease, the workers that have an end record under it."""
        listed = (self._keys.attempt_file(entry.key) for entry in self._store.list(f"{self._keys.attempts}/"))
        found = [file for file in listed if file]
        numbers = {file.attempt for file in found if file.worker is None}
        return {
            number: [
                file.worker for file in found if file.attempt == number and file.worker is not None and file.is_end
            ]
            for number in numbers
        }

    def _lease_of(self, number: int) -> Lease | None:
        """None where another version of this package wrote it."""
        key = self._keys.attempt(number).lease
        data = self._store.get(key).data
        try:
            return Lease.from_json(data, key)
        except StorageFailed:
            return None

    def _ends(self, number: int, workers: list[int]) -> list[EndRecord]:
        found = (self._end(self._keys.attempt(number).end(worker)) for worker in workers)
        return [end for end in found if end]

    def _end(self, key: str) -> EndRecord | None:
        """None where another version of this package wrote it."""
        data = self._store.get(key).data
        try:
            return EndRecord.from_record(data, key)
        except StorageFailed:
            return None
