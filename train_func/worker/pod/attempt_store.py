"""The attempts of a run in the store: who claims the next number, how they ended, and when there are enough.

An attempt is charged unless it was stopped from outside. Numbers go on as long as the generation lasts; the count
begins anew with each submission.
"""

import json
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from typing import TypeVar

from train_func import exits
from train_func.attempt_records import EndRecord, Lease, Verdict, digest_of
from train_func.counted import counted
from train_func.errors import StorageFailed
from train_func.events import now
from train_func.layout import RunKeys
from train_func.records import RunRecord
from train_func.storage import Store, find
from train_func.worker.pod import masks
from train_func.worker.pod.rank_end import RankEnd, records_of

Record = TypeVar("Record", bound=Lease)
LOOK_SECONDS = 0.5
AT_STEP = 3  # attempts that fail behind the same step: what ends them is there, whatever was saved before
OUT_OF_MEMORY = 8  # attempts that need too much of it: a cut of 128 rows has been halved to one row by then


@dataclass(frozen=True)
class Account:
    """The attempts that the starts so far leave over."""

    num_started: int
    """Attempts of this submission."""
    num_charged: int
    max_attempts: int
    last: Verdict | None
    """The newest charged end that is known."""
    step: int = 0
    """The last step of the newest attempts, if it is the same one."""
    num_at_step: int = 0
    """How many of those attempts, one after the other, a worker has ended that failed by itself."""
    num_out_of_memory: int = 0
    """Attempts of this submission that needed more memory than there is, whatever they have saved."""

    @property
    def spent(self) -> bool:
        return self._is_spent(0)

    @property
    def is_next_last(self) -> bool:
        """Whether there is no further attempt if the next one fails as the last has."""
        return self._is_spent(1)

    def _is_spent(self, num_more: int) -> bool:
        used_up = self.num_charged + num_more >= self.max_attempts
        at_step = self.num_at_step + num_more >= AT_STEP
        return used_up or at_step or self.num_out_of_memory + num_more >= OUT_OF_MEMORY

    @property
    def at_most(self) -> int:
        """Attempts that this submission may have in all if none is stopped from outside from now on."""
        return self.num_started + self.max_attempts - self.num_charged

    def verdict(self, worker: int, own: Verdict | None = None) -> Verdict:
        """The final verdict of a run that is out of attempts."""
        last = own or self.last
        ended = f"The last one: {last.message}" if last else "The last one left no record, as after SIGKILL"
        if self.num_charged < self.max_attempts and self.num_out_of_memory >= OUT_OF_MEMORY:
            message = (
                f"{self.num_out_of_memory} attempts needed more memory than there is, down to the smallest "
                f"micro_batch_size. {ended}. What grows with every step, such as a list of losses that hold their "
                "graphs, needs more at any size of a batch: free it, and submit again"
            )
        elif self.num_charged < self.max_attempts:
            message = f"{self.num_at_step} attempts have failed behind step {self.step}. {ended}. Fix the cause"
            message = f"{message} and submit again"
        else:
            message = (
                f"{self.num_charged} of {counted(self.max_attempts, 'attempt')} made no progress. {ended}. "
                "Fix the cause and submit again, or allow more with max_attempts"
            )
        cause, hangs = (last.cause, last.hangs) if last else ("killed", None)
        return Verdict(exits.SPENT, cause, message, worker, hangs=hangs)


def newest_submission(store: Store, record: RunRecord) -> str:
    """The time of the newest submission of the run, as its record in the store says."""
    found = find(store, record.keys.run)
    try:
        return str(json.loads(found.data)["submitted"]) if found else record.submitted
    except (ValueError, LookupError, TypeError):  # what is wrong with the record is said where it is read
        return record.submitted


class Refused(Exception):
    """The attempt may not begin."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.message)
        self.verdict = verdict


class Attempts:
    """The attempts of one generation of one run, seen by one worker."""

    def __init__(self, store: Store, record: RunRecord, *, worker: int, pod: str, pod_uid: str = "") -> None:
        self._store = store
        self._record = record
        self._worker = worker
        self._pod = pod
        self._pod_uid = pod_uid
        self._unanswered: Lease | None = None
        self._marks: dict[int, str] = {}  # of the ends that this process has written, by attempt

    def check_wanted(self, seconds: float) -> None:
        """Raises StorageFailed, reason "conflict", where the job was cancelled, or the run was submitted again.

        ``seconds``: for the record of another client, which may have been slower to start a job, to be put back.
        """
        run, own = self._record.name, self._record.submitted
        if not own:  # started by another launcher
            return
        if find(self._store, self._keys.cancelled):
            raise StorageFailed(
                f"{run} was cancelled after this job of it was submitted, as {self._store.address}/"
                f"{self._keys.cancelled} says: nothing is trained; submit it again to go on",
                reason="conflict",
            )
        end = time.monotonic() + seconds
        while (newest := newest_submission(self._store, self._record)) != own:
            if time.monotonic() > end:
                raise StorageFailed(
                    f"{run} was submitted again at {newest}, after this job of it, which was submitted at {own} and "
                    f"trains nothing any more: {self._store.address}/{self._keys.submission} says where the new one is",
                    reason="conflict",
                )
            time.sleep(LOOK_SECONDS)

    def claim(self) -> Lease:
        """Takes the next free number; of several claimants at once each gets its own.

        Called again after a failure of the store, it takes none twice: the answer to the last one may have been lost.
        """
        number = max(self._ended(), default=0) + 1
        unanswered, self._unanswered = self._unanswered, None
        if unanswered and unanswered.attempt < number and self._lease_of(unanswered.attempt) == unanswered:
            return unanswered
        while not self._put(lease := self.lease(number)):
            number += 1
        return lease

    def claim_unformed(self) -> Lease:
        """Returns the number for the end of this worker if no group has formed: one for all workers that end so."""
        number = max(self._ended(), default=1)
        while not self._put(lease := self.lease(number, formed=False)) and not self._may_join(number):
            number += 1
        return lease

    def _put(self, lease: Lease) -> bool:
        try:
            self._store.put(self._keys.attempt(lease.attempt).lease, lease.to_json(), if_absent=True)
        except StorageFailed as failure:
            if failure.reason != "conflict":
                self._unanswered = lease
                raise
            return False
        return True

    def _may_join(self, number: int) -> bool:
        """Whether no group has formed under it either, and this worker has not ended under it yet."""
        lease = self._lease_of(number)
        if lease is None or lease.formed or lease.submitted != self._record.submitted:
            return False
        return all(end.worker != self._worker for end in self._ended().get(number, {}).values())

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

    def account(self, current: int | None = None, step: int = 0, verdicts: Collection[Verdict | None] = ()) -> Account:
        """Counts the attempts of this submission; ``current`` is counted however its workers end, behind ``step``.

        ``verdicts``: what is known of its workers and may not be on record yet. An attempt that only lost a peer, as
        where a node vanishes, says nothing of the step that it ended behind.

        Only without the time of the submission a final end before tells of a new one: a worker writes down that it is
        done and may be lost with its group all the same. Of the attempts up to the last that has saved a checkpoint
        none is charged: they have come further.
        """
        submitted = self._record.submitted
        ended = self._ended()
        saved = self._last_that_saved()
        num_started, num_charged, num_out_of_memory, last = 0, 0, 0, None
        behind: list[tuple[int, bool]] = []  # steps, the newest attempt first, and whether a worker failed by itself
        for number in sorted(ended, reverse=True):
            lease = self._lease_of(number) if number != current else None
            if lease and lease.submitted != submitted and not lease.formed:
                continue  # of a superseded job, whose worker may end after the attempts of this one began
            if number != current and (lease is None or lease.submitted != submitted):
                break
            ends = sorted(ended[number].values(), key=lambda end: not end.root_cause)
            if number != current and not submitted and any(not exits.retryable(end.exit_code) for end in ends):
                break
            num_started += 1
            known = [*ends, *(of for of in verdicts if of and number == current)]
            is_out_of_memory = any(map(_asks_for_finer_cut, known))
            num_out_of_memory += is_out_of_memory
            if not any(end.exit_code == exits.STOPPED for end in ends):
                done = step if number == current else max((end.step for end in ends), default=0)
                is_own = any(of.is_own_failure for of in known)
                behind.append((0 if is_out_of_memory else done, is_own))  # without memory, the next one cuts finer
            if number > saved and not any(end.exit_code == exits.STOPPED for end in ends):
                num_charged += 1
                last = last or self._read_first(ends)
        newest = behind[0][0] if behind else 0
        return Account(
            num_started,
            num_charged,
            self._record.run.max_attempts,
            last,
            step=newest,
            num_at_step=sum(is_own for _, is_own in takewhile(lambda of: of[0] == newest > 0, behind)),
            num_out_of_memory=num_out_of_memory,
        )

    def num_out_of_memory(self) -> int:
        """Attempts, of all submissions, that ended because a rank needed more memory than there is."""
        return sum(any(map(_asks_for_finer_cut, ends.values())) for ends in self._ended().values())

    def _last_that_saved(self) -> int:
        """Number of the last attempt with a complete checkpoint; 0 when there is none."""
        entries = self._store.list(f"{self._keys.checkpoints}/")
        ids = filter(None, (self._keys.checkpoint_id(entry.key) for entry in entries))
        return max((checkpoint.attempt for checkpoint in ids), default=0)

    def end_keys(self) -> set[str]:
        """Returns one key for each end record there is now."""
        return {key for ends in self._ended().values() for key in ends}

    def past_ends(self) -> set[str]:
        """Returns the keys of end records that say nothing of the job: all but failures of this submission.

        A worker that has written down that it is done may be lost with its group, and start again.
        """
        failed = {key for key, end in self._final().items() if self._record.submitted and end.exit_code}
        return self.end_keys() - failed

    def final_end(self, known: set[str]) -> Verdict | None:
        """Returns a final verdict on this submission whose key is not among those ``known``."""
        return self._read_first([end for key, end in self._final().items() if key not in known])

    def _final(self) -> dict[str, EndRecord]:
        """Returns the final ends of this submission, without those of workers that a later attempt has fenced off."""
        found = {key: end for ends in self._ended().values() for key, end in sorted(ends.items())}
        ours = {key: end for key, end in found.items() if end.submitted == digest_of(self._record.submitted)}
        return {key: end for key, end in ours.items() if not end.retryable and end.exit_code != exits.FENCED}

    def root_of(self, number: int) -> Verdict | None:
        """The verdict on this attempt by the worker it began with, when that worker has recorded its end."""
        ends = self._ended().get(number, {}).values()
        return self._read_first([end for end in ends if end.root_cause and end.exit_code != 0])

    def is_published(self) -> bool:
        """Whether the run has a result; a worker that starts again then has nothing left to do."""
        return bool(self._store.list(self._record.keys.result))

    def write_end(self, lease: Lease, verdict: Verdict, ends: list[RankEnd], step: int = 0) -> None:
        """Writes this worker's end record; ``step``: the last that was done."""
        claim = {**asdict(lease), "worker": self._worker, "pod": self._pod, "pod_uid": self._pod_uid}
        record = EndRecord(**{**asdict(verdict), **claim}, ended=now(), ranks=records_of(ends), step=step)
        keys = self._keys.attempt(lease.attempt)
        self._store.put(keys.end(self._worker), masks.mask(record).to_json())
        mark, before = keys.end_mark(record.facts), self._marks.get(lease.attempt)
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
        """Returns the ends of each number that has a lease, by their keys, with the facts that one listing has."""
        keys = [entry.key for entry in self._store.list(f"{self._keys.attempts}/")]
        files = filter(None, map(self._keys.attempt_file, keys))
        ended: dict[int, dict[str, EndRecord]] = {file.attempt: {} for file in files if file.worker is None}
        for key in keys:
            number, facts = self._keys.end_mark(key) or (0, "")
            if number in ended and (end := EndRecord.of_facts(number, facts)):
                ended[number][key] = end
        return ended

    def _read_first(self, ends: Sequence[EndRecord]) -> EndRecord | None:
        """Reads the whole record of the first of these ends, with its message."""
        return self._read(EndRecord, self._keys.attempt(ends[0].attempt).end(ends[0].worker)) if ends else None

    def _lease_of(self, number: int) -> Lease | None:
        return self._read(Lease, self._keys.attempt(number).lease)

    def _read(self, kind: type[Record], key: str) -> Record | None:
        """Returns None if another version of this package wrote it."""
        data = self._store.get(key).data
        try:
            return kind.from_json(data, key)
        except StorageFailed:
            return None


def _asks_for_finer_cut(end: Verdict) -> bool:
    """Whether a rank ran out of memory and may need less. A refused attempt, without ranks, repeats a verdict."""
    had_ranks = isinstance(end, EndRecord) and bool(end.ranks)
    is_retried = end.exit_code == exits.MEMORY or (end.exit_code == exits.SPENT and had_ranks)
    return end.root_cause and end.cause == "memory" and is_retried
