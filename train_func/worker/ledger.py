"""The ledger of a run's attempts in the store: claims numbers, records ends, and counts how many may follow.

An attempt is charged unless it was stopped from outside, or its group never formed. Numbers go on as long as the
generation lasts; the count begins anew with each submission.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

from train_func.errors import StorageFailed
from train_func.storage import Store, find, put_new
from train_func.text import counted
from train_func.wire import exits
from train_func.wire.events import now
from train_func.wire.layout import RunKeys, newest_number
from train_func.wire.records import EndRecord, Lease, RunRecord, Verdict
from train_func.worker import masks
from train_func.worker.rank.end import RankEnd, records_of

Record = TypeVar("Record", bound=Lease)
NEVER_FORMED = exits.RENDEZVOUS, "peer"  # an end while pods wait for room, for which the deadline of the run counts
SUBMISSION_LOOK_SECONDS = 0.5  # between two looks at the newest submission


def newest_submission(store: Store, record: RunRecord) -> int:
    """Returns the number of the newest submission of the run."""
    return newest_number(store.names(record.keys.submissions)) or record.submission


@dataclass(frozen=True)
class Account:
    """The number of attempts of a submission so far, and how many may follow."""

    num_started: int
    """Attempts of this submission."""
    num_charged: int
    max_attempts: int
    last: Verdict | None
    """The end of the newest charged attempt, if it is known."""
    saved_step: int
    """The step of the newest checkpoint; 0 if there is none."""
    began: str
    """The time at which the first group of this submission formed, ISO, UTC; empty if none has."""

    @property
    def spent(self) -> bool:
        return self.num_charged >= self.max_attempts

    @property
    def at_most(self) -> int:
        """Returns how many attempts the submission may have in all, if none is stopped from outside from now on."""
        return self.num_started + self.max_attempts - self.num_charged

    def verdict(self, worker: int, last: Verdict | None = None) -> Verdict:
        """Returns the final verdict of a run that is out of attempts; ``last``: the end of the last one, if known."""
        last = last or self.last
        ended = f"The last one: {last.message}" if last else "The last one left no record, as after SIGKILL"
        message = (
            f"{self.num_charged} of {counted(self.max_attempts, 'attempt')} made no progress. {ended}. "
            "Fix the cause and submit again, or allow more with max_attempts"
        )
        cause, hangs = (last.cause, last.hangs) if last else ("killed", None)
        return Verdict(exits.SPENT, cause, message, worker, hangs=hangs)


class Ledger:
    """Reads and writes the attempts of one generation of a run for one worker."""

    def __init__(self, store: Store, record: RunRecord, *, worker: int, pod: str, pod_uid: str = "") -> None:
        self._store = store
        self._record = record
        self._worker = worker
        self._pod = pod
        self._pod_uid = pod_uid
        self._unanswered: Lease | None = None
        self._marks: dict[int, str] = {}  # of the ends that this process has written, by attempt

    def check_wanted(self, seconds: float) -> None:
        """Raises StorageFailed, reason "conflict", if the job was cancelled or the run was submitted again.

        ``seconds``: time for another client, whose job did not start, to take its submission back.
        """
        run, number = self._record.name, self._record.submission
        if not number:  # started by another launcher
            return
        cancelled = self._keys.cancelled(number)
        if find(self._store, cancelled):
            raise StorageFailed(
                f"{run} was cancelled after this job was submitted, as {self._store.address}/{cancelled} says: this "
                "job trains nothing; submit the run again to go on",
                reason="conflict",
            )
        end = time.monotonic() + seconds
        while (newest := newest_submission(self._store, self._record)) > number:
            if time.monotonic() > end:
                raise StorageFailed(
                    f"{run} was submitted again after this job, which was submitted at {self._record.submitted} and "
                    f"now trains nothing: {self._store.address}/{self._keys.submission(newest)} says where the new "
                    "one is",
                    reason="conflict",
                )
            time.sleep(SUBMISSION_LOOK_SECONDS)

    def claim(self) -> Lease:
        """Takes the next free number; several claimants at once get different numbers.

        A call after a failure of the store takes no second number, because only the answer may have been lost.
        """
        number = max(self._ended(), default=0) + 1
        unanswered, self._unanswered = self._unanswered, None
        if unanswered and unanswered.attempt < number and self._lease_of(unanswered.attempt) == unanswered:
            return unanswered
        while not self._put(lease := self.lease(number)):
            number += 1
        return lease

    def claim_unformed(self) -> Lease:
        """Returns the number for the end of a worker whose group has not formed; all such workers share it."""
        number = max(self._ended(), default=1)
        while not self._put(lease := self.lease(number, formed=False)):
            before = self._lease_of(number)
            is_unformed = before is not None and not before.formed and before.submitted == self._record.submitted
            if is_unformed and all(end.worker != self._worker for end in self._ended().get(number, {}).values()):
                break  # no group has formed under it either, and this worker has not ended under it yet
            number += 1
        return lease

    def _put(self, lease: Lease) -> bool:
        try:
            return put_new(self._store, self._keys.attempt(lease.attempt).lease, lease.to_json())
        except StorageFailed:
            self._unanswered = lease
            raise

    def lease(self, number: int, *, formed: bool = True) -> Lease:
        """Returns this worker's claim of a number."""
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

    def account(self, current: int | None = None, step: int = 0) -> Account:
        """Counts the attempts of this submission; ``current``, which ends after ``step``, always counts.

        An attempt that saved a checkpoint beyond the step of the earlier failures has made progress, and the count
        begins again. An attempt whose checkpoints were replaced by later ones is not charged, because its progress is
        not known.
        """
        ended = self._ended()
        leases = dict(self._of_submission(ended, current))
        numbers = sorted(leases)
        saved: dict[int, tuple[int, int]] = {}  # training and step of the newest complete checkpoint, by attempt
        for entry in self._store.list(f"{self._keys.checkpoints}/"):
            if checkpoint := self._keys.checkpoint_id(entry.key):
                saved[checkpoint.attempt] = max(
                    saved.get(checkpoint.attempt, (0, 0)), (checkpoint.training, checkpoint.step)
                )
        failed_at, num_charged = (0, 0), 0
        last: Sequence[EndRecord] = ()
        for number in numbers:
            ends = sorted(ended[number].values(), key=lambda end: not end.root_cause)
            was_stopped = any(end.cause == "preemption" for end in ends)  # a worker, and those that follow it
            if was_stopped or any((end.exit_code, end.cause) == NEVER_FORMED for end in ends):
                continue
            training, _ = newest = saved.get(number, (failed_at[0], 0))
            if newest > failed_at:
                num_charged, last = 0, ()
            elif number in saved or number > max(saved, default=0):
                num_charged, last = num_charged + 1, ends or last
            done = step if number == current else max((end.step for end in ends), default=0)
            failed_at = max(failed_at, (training, done))
        _, saved_step = max(saved.values(), default=(0, 0))
        formed = (lease.started for lease in map(leases.get, numbers) if lease and lease.formed)
        began, max_attempts = next(formed, ""), self._record.run.max_attempts
        return Account(len(numbers), num_charged, max_attempts, self._read_first(last), saved_step, began)

    def _of_submission(
        self, ended: Mapping[int, Mapping[str, EndRecord]], current: int | None
    ) -> Iterator[tuple[int, Lease | None]]:
        """Yields the numbers of the attempts of this submission, the newest first, with the leases of earlier ones."""
        submitted = self._record.submitted
        for number in sorted(ended, reverse=True):
            if current is not None and number > current:
                continue  # of the workers that go on without this one
            lease = self._lease_of(number) if number != current else None
            if lease and lease.submitted != submitted and not lease.formed:
                continue  # of a superseded job, whose worker may end after the attempts of this one began
            if number != current and (lease is None or lease.submitted != submitted):
                return
            yield number, lease

    def root_of(self, number: int) -> Verdict | None:
        """Returns the verdict on this attempt from the worker that failed first; None until that is recorded."""
        ends = self._ended().get(number, {}).values()
        return self._read_first([end for end in ends if end.root_cause and end.exit_code != 0])

    def end_of(self, number: int) -> tuple[str, int]:
        """Returns why this attempt has ended, in words, and its last step, as far as its workers have recorded them.

        Where no group formed for it, those of the newest attempt before it for which one did.
        """
        ended = self._ended()
        trained = (
            before
            for before in range(number, 0, -1)
            if before not in ended or (lease := self._lease_of(before)) is None or lease.formed
        )
        ends = [end for end in ended.get(next(trained, number), {}).values() if end.exit_code]
        first = self._read_first(sorted(ends, key=lambda end: not end.root_cause))  # others name the one they followed
        return first.reason if first else "", max((end.step for end in ends), default=0)

    def is_published(self) -> bool:
        """Returns whether the run has a result, so that a restarted worker has nothing to do."""
        return bool(self._store.list(self._record.keys.result))

    def write_end(self, lease: Lease, verdict: Verdict, ends: list[RankEnd], step: int = 0) -> None:
        """Writes this worker's end record; ``step``: the last step that is done."""
        claim = {**asdict(lease), "worker": self._worker, "pod": self._pod, "pod_uid": self._pod_uid}
        record = EndRecord(**{**asdict(verdict), **claim}, ended=now(), ranks=records_of(ends), step=step)
        keys = self._keys.attempt(lease.attempt)
        self._store.put(keys.end(self._worker), masks.mask(record).to_json())
        mark, before = keys.end_mark_key(record.facts), self._marks.get(lease.attempt)
        self._store.put(mark, b"")
        self._marks[lease.attempt] = mark
        if before and before != mark:
            self._store.delete(before)

    def put_log(self, number: int, log: bytes) -> None:
        """Replaces this worker's log of the attempt."""
        self._store.put(self._keys.attempt(number).log(self._worker), log)

    @property
    def _keys(self) -> RunKeys:
        return self._record.keys

    def _ended(self) -> dict[int, dict[str, EndRecord]]:
        """Returns the ends of each number with a lease, by key, with the facts from one listing."""
        keys = [entry.key for entry in self._store.list(f"{self._keys.attempts}/")]
        files = filter(None, map(self._keys.attempt_file, keys))
        ended: dict[int, dict[str, EndRecord]] = {file.attempt: {} for file in files if file.worker is None}
        for key in keys:
            number, facts = self._keys.parse_end_mark(key) or (0, "")
            if number in ended and (end := EndRecord.of_facts(number, facts)):
                ended[number][key] = end
        return ended

    def _read_first(self, ends: Sequence[EndRecord]) -> EndRecord | None:
        """Returns the whole record of the first of these ends, with its message."""
        return self._read(EndRecord, self._keys.attempt(ends[0].attempt).end(ends[0].worker)) if ends else None

    def _lease_of(self, number: int) -> Lease | None:
        return self._read(Lease, self._keys.attempt(number).lease)

    def _read(self, kind: type[Record], key: str) -> Record | None:
        """Returns the record; None if another version of this package wrote it."""
        data = self._store.get(key).data
        try:
            return kind.from_json(data, key)
        except StorageFailed:
            return None
