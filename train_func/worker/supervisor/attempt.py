"""One attempt as this worker lives it: it gets its number, is finished together, and ends on record.

Worker 0 claims the number in the store and tells the others how the attempt starts. While a worker still waits for its
group, it looks whether the job is over, as the group then never forms.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self, TypeVar

from train_func import exits
from train_func.codec import Record
from train_func.errors import StorageFailed
from train_func.events import AttemptStarts, RanksRestart
from train_func.process_tree import num_memory_kills
from train_func.records import Lease, RunRecord, Verdict
from train_func.storage import Store
from train_func.storage.retry import call_with_timeout
from train_func.worker.environment import Environment
from train_func.worker.publish import trackers
from train_func.worker.publish.publication import Publication
from train_func.worker.rank import reporting
from train_func.worker.rank.end import RankEnd
from train_func.worker.rank.output import keep, of_rank
from train_func.worker.stop import Stop, WithinGrace
from train_func.worker.store_wait import patient, patiently
from train_func.worker.supervisor.budget import Account, Attempts, Refused
from train_func.worker.supervisor.coordinator import Phase, Status
from train_func.worker.supervisor.group import Member
from train_func.worker.supervisor.inputs import RunInputs
from train_func.worker.supervisor.log import History, LogTee
from train_func.worker.supervisor.verdict import following, left_steps, of_ranks


@dataclass(frozen=True)
class Start(Record):
    """Worker 0 says this to the others before any rank starts."""

    lease: Lease
    num_started: int
    num_free: int
    at_most: int
    refused: Verdict | None

    @classmethod
    def of(cls, lease: Lease, account: Account, refused: Verdict | None) -> Self:
        """Returns the start of the attempt that follows those in the account."""
        num_free = account.num_started - account.num_charged
        return cls(lease, account.num_started, num_free, account.at_most, refused)

    @property
    def variables(self) -> dict[str, str]:
        """The variables by which the ranks hear of it."""
        return {"TRAIN_FUNC_ATTEMPT": str(self.lease.attempt)}

    def event(self, environment: Environment) -> AttemptStarts:
        """Returns the event that the log shows."""
        return AttemptStarts(
            attempt=self.lease.attempt,
            position=self.num_started + 1,
            at_most=self.at_most,
            num_free=self.num_free,
            num_workers=environment.num_workers,
            num_ranks=environment.num_workers * environment.num_ranks,
            num_threads=environment.num_threads,
        )


T = TypeVar("T")


class Attempt:
    """The attempt of this process."""

    def __init__(self, environment: Environment, record: RunRecord, store: Store, log_tee: LogTee, stop: Stop) -> None:
        self._environment = environment
        self._timings = environment.timings
        self._record = record
        self._store = store
        self._log_tee = log_tee
        self._stop = stop
        self._attempts = Attempts(
            store, record, worker=environment.worker, pod=environment.pod, pod_uid=environment.pod_uid
        )
        self._member: Member | None = None
        self._verdict: Verdict | None = None
        self._closing = threading.Lock()
        self._num_memory_kills = num_memory_kills()
        self._tracked = False
        self.finishes = False
        """Whether the ranks of all workers have ended well, and what they have trained is made the result."""
        self._silent = False  # the store, at the end
        self._until = 0.0  # monotonic seconds; set anew where an end is written down
        self._before: Verdict | None = None
        self._root: Verdict | None = None  # of the worker whose end came first, if known
        self.hang_after = record.run.hang_after
        self.step = 0  # the last of the training that was done
        self.out_of_memory = False  # a rank was killed for it before the kernel could
        self._is_stuck = False  # a rank cannot be ended, and may hold what another attempt needs
        self.lease: Lease | None = None
        self.job_end: Verdict | None = None
        """A final end of another worker, which was seen before this attempt had its number."""

    @property
    def ending(self) -> bool:
        """Whether its end is being written down."""
        return self._closing.locked()

    def prepare(self) -> None:
        """Makes sure that the store can be used, and watches it for the end of the job until the group forms."""
        patiently(lambda: self._store.probe(self._record.keys.prefix), self._stop, self._timings)
        known = patiently(self._attempts.past_ends, self._stop, self._timings)
        threading.Thread(target=self._watch, args=(known,), name="end of the job", daemon=True).start()

    def _watch(self, known: set[str]) -> None:
        while self.lease is None and self.job_end is None:
            time.sleep(self._timings.watch)
            with contextlib.suppress(StorageFailed):  # the next call that needs the store says that it is away
                self.job_end = self._attempts.final_end(known)

    def open(self, member: Member) -> dict[str, str]:
        """Claims the number (worker 0) or hears it, brings the inputs, and returns the variables of both for the ranks.

        Raises:
            Refused: the attempts are used up.
            StorageFailed: reason "conflict" where the job was given up, as by a client that could not reach it.
        """
        self._member = member
        claimed = ""
        if self._environment.worker == 0:
            member.hear(Phase.CLAIM)
            claimed = self._claim(member).to_json().decode()
        start = Start.from_json(member.hear(Phase.PREPARE, start=claimed).start.encode())
        self._begin(start.lease)
        if start.refused:
            raise Refused(replace(start.refused, worker=self._environment.worker))
        number, worker = start.lease.attempt, self._environment.worker
        if before := self._before:
            reporting.say(RanksRestart(worker=worker, attempt=number, message=before.message, follows=before.worker))
        if worker == 0:  # the whole group needs to hear it once
            reporting.say(start.event(self._environment))
        inputs = RunInputs(self._environment, self._record, self._store, self._stop)
        return start.variables | inputs.bring(member, number)

    def _claim(self, member: Member) -> Start:
        seconds = self._timings.superseded
        patiently(lambda: self._attempts.check_wanted(seconds), self._stop, self._timings)
        account = patiently(self._attempts.account, self._stop, self._timings)
        if self._before and account.num_charged > 1:  # what was in the way of the last two may need a moment to go
            self._stop.pause(min(self._timings.pause * 2 ** (account.num_charged - 2), self._timings.longest_pause))
            member.look()
        lease = patiently(self._attempts.claim, self._stop, self._timings)
        refused = account.verdict(self._environment.worker) if account.spent else None
        return Start.of(lease, account, refused)

    def _begin(self, lease: Lease) -> None:
        self.lease = lease
        keys, is_first = self._record.keys.attempt(lease.attempt), self._environment.worker == 0
        history = History(keys, self._store.put) if is_first else None  # rank 0 alone reports metrics
        self._log_tee.begin(lambda log: self._attempts.put_log(lease.attempt, log), history)

    def finish(self, member: Member, ends: list[RankEnd]) -> None:
        """Makes what was trained the result of the run, and puts this worker's success on record.

        When the ranks of all workers have ended well, because only then there is a result; and before any worker leaves
        with exit code 0, which ends the job.
        """
        environment, lease, stop = self._environment, self.lease, WithinGrace(self._stop)
        assert lease is not None  # no rank starts before
        left = left_steps(ends, worker=environment.worker)
        member.hear(Phase.FINISH, Phase.DONE, status=Status.ENDED, left=left)
        self.finishes = True
        if environment.worker == 0:
            first = next((end.outcome for end in ends if end.rank == 0), None)
            publication = Publication(environment.work_dir, self._store, self._record, lease.attempt)
            publication.conclude(of_rank(environment.work_dir, 0), first)
            publication.publish(stop)  # before what may be lost
            member.tell(status=Status.PUBLISHED)
        waiting = patient(self._store, stop, self._timings.record, "keep the files of ranks", self._timings)
        keep(waiting, self._record.keys.attempt(lease.attempt), environment.work_dir, [end.rank for end in ends])
        self._keep_trackers(waiting)
        if any(end.separate for end in ends):
            print("the ranks never formed one process group: each has trained by itself")
        member.hear(Phase.DONE, stop=stop)
        self._until = time.monotonic() + self._timings.record
        self._keep(Verdict(exits.DONE, None, "all ranks ended", environment.worker), ends)

    def close(self, ends: list[RankEnd], own: Verdict | None, root: Verdict | None = None) -> Verdict:
        """The verdict on this worker, on record as far as the store lets it; later calls return the first's.

        Args:
            ends: how the ranks ended.
            own: why the supervisor ended the attempt, unless the ranks did.
            root: the verdict of the worker whose end came first, when that is known already.
        """
        with self._closing:
            self._until = time.monotonic() + (self._timings.record if self.lease else self._timings.unformed)
            if self._verdict is None:
                self._verdict = self._close(ends, own, root)
            return self._verdict

    def _close(self, ends: list[RankEnd], own: Verdict | None, root: Verdict | None) -> Verdict:
        out_of_memory = self.out_of_memory or num_memory_kills() > self._num_memory_kills
        self._is_stuck = any(end.exit_code is None for end in ends)
        found = of_ranks(ends, worker=self._environment.worker, out_of_memory=out_of_memory)
        verdict = found if found and (found.root_cause or own is None) else own
        assert verdict is not None
        if verdict.exit_code == exits.DONE:
            return verdict
        if self._member:
            left = left_steps(ends, worker=verdict.worker)
            self._member.fail(verdict, left, went_on=any(end.went_on for end in ends))
        if verdict.exit_code == exits.PEER and not verdict.root_cause:
            root = root or self._ask_for_root()
            verdict = following(root, verdict)
        if self._lease_for(verdict):
            verdict = self._charged(verdict, root)
            self._keep(verdict, ends)
        self._root = verdict if verdict.root_cause else root
        return verdict

    def leave(self) -> None:
        """Parts from the group, after ``close``: worker 0 stays a little for those who still read the reason."""
        if self._member:
            self._member.leave(self._timings.linger if self._root and not self._stop.requested else 0.0)

    def next(self) -> "Attempt | None":
        """Another attempt of the group in its pods when a rank was lost and no pod, by the first verdict; else None."""
        root, own = self._root, self._verdict
        if self._stop.requested or not (root and own and root.root_cause and root.retryable and own.retryable):
            return None
        if self._member is None or self._is_stuck:
            return None
        if not self._member.begin_again():
            return None
        attempt = Attempt(self._environment, self._record, self._store, self._log_tee, self._stop)
        attempt._before = root
        return attempt

    def _ask_for_root(self) -> Verdict | None:
        """Returns why the round ends, by the coordinator or, where that has gone, by the records of ends."""
        if self._member is None or self._stop.requested:
            return None
        root = self._member.root()
        if root or (lease := self.lease) is None:
            return root
        return self._bounded(lambda: self._attempts.root_of(lease.attempt))

    def _charged(self, verdict: Verdict, root: Verdict | None) -> Verdict:
        """The final verdict instead, when this attempt was the last one and the run has no result.

        A stop from outside costs nothing.
        """
        is_free = exits.STOPPED in (verdict.exit_code, root.exit_code if root else None)
        if is_free or (lease := self.lease) is None or not verdict.retryable:
            return verdict
        account = self._bounded(lambda: self._attempts.account(lease.attempt, self.step))
        if account is None or not account.spent or self._bounded(self._attempts.is_published):
            return verdict
        return following(root, account.verdict(self._environment.worker, root or verdict))

    def _lease_for(self, verdict: Verdict) -> bool:
        """Whether this end goes on record: under the group's number, or under that of no group if none was formed."""
        if self.lease:
            return True
        if not verdict.root_cause or (verdict.retryable and verdict.exit_code not in (exits.STOPPED, exits.RENDEZVOUS)):
            return False
        if lease := self._bounded(self._attempts.claim_unformed):
            self._begin(lease)
        return lease is not None

    def _keep(self, verdict: Verdict, ends: list[RankEnd]) -> None:
        if lease := self.lease:
            self._bounded(lambda: self._attempts.write_end(lease, verdict, ends, self.step))
            self._bounded(lambda: self._keep_trackers(self._store))
            self._log_tee.flush(self.seconds_left())

    def _keep_trackers(self, store: Store) -> None:
        """Once, as far as the store is there: it has what was trained, or how that failed, before this."""
        if self._environment.worker or self._tracked or (lease := self.lease) is None:
            return
        self._tracked = True
        trackers.keep(store, self._record.keys.attempt(lease.attempt), self._environment.work_dir)

    def _bounded(self, call: Callable[[], T]) -> T | None:
        """The result, or None with a line in the log: at its end a worker waits for no store for long."""
        try:
            return call_with_timeout(max(self._timings.shortest, self.seconds_left()), call)
        except (TimeoutError, StorageFailed) as failure:
            self._silent = self._silent or isinstance(failure, TimeoutError)
            print(f"the store was no help at the end of this attempt: {failure or 'no answer'}")
            return None

    def seconds_left(self) -> float:
        """Seconds the worker may still wait for the store, which has its log last; none where it has been silent."""
        until = min(self._until, self._stop.all_until) if self._stop.requested else self._until
        return max(0.0 if self._silent else self._timings.shortest, until - time.monotonic())
