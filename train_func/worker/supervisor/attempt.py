"""One attempt in this worker: claims its number, trains, finishes with the group, and records its end.

    claim    the lead puts the lease of the next number into the store, and says no where the attempts are used up
    bring    each worker brings the inputs of the run and begins the log of the attempt
    train    the launcher runs the ranks of this worker (ranks.py)
    finish   when the ranks of all workers have ended well, the lead publishes; the others wait for that
    close    the verdict of this worker is put on record, with its log
    next     where a rank was lost and no pod, the same pods begin another attempt; an elastic group also without a pod

The coordinator orders these (coordinator.py); a worker that waits for an order hears that its round is over.

The verdict on a worker is that on its own ranks. If they only followed another worker, it is the verdict on the worker
that failed first, from the coordinator or, if that has gone, from the records in the store. The main thread may call
``close`` when time is up, and so may the working thread; the first call decides.

At its end a worker does not wait long for the store: each request has the rest of RECORD_SECONDS, or of the grace
period after a signal, and after a request without an answer the others have SHORTEST_SECONDS.
"""

import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Self, TypeVar

from train_func.errors import StorageFailed
from train_func.process.process_tree import num_memory_kills
from train_func.process.timeout import call_with_timeout
from train_func.storage import Store
from train_func.wire import exits
from train_func.wire.events import LAST_STEP, AttemptStarts, RanksRestart, WorkerJoins
from train_func.wire.layout import SOURCE
from train_func.wire.records import Lease, RunRecord, Verdict
from train_func.worker.environment import Environment
from train_func.worker.ledger import Account, Ledger
from train_func.worker.publish.publication import Publication
from train_func.worker.rank import reporting
from train_func.worker.rank.end import RankEnd
from train_func.worker.rank.folders import FOLDERS, keep, rank_folder
from train_func.worker.rank.marks import Mark
from train_func.worker.stop import Stop, WithinGrace
from train_func.worker.store_wait import RECORD_SECONDS, patient, patiently
from train_func.worker.supervisor.alerts.alerter import Alerter
from train_func.worker.supervisor.coordinator import SILENCE_SECONDS, GroupPhase, Status, lost_verdict
from train_func.worker.supervisor.group import Member
from train_func.worker.supervisor.lead import Lead
from train_func.worker.supervisor.log import LogTee
from train_func.worker.supervisor.rank_process import Template
from train_func.worker.supervisor.ranks import Launcher
from train_func.worker.supervisor.run_inputs import RunInputs
from train_func.worker.supervisor.uploads import Heartbeat, HistoryUpload
from train_func.worker.supervisor.verdict import follower_verdict, left_loop_verdict, worker_verdict

SUPERSEDED_SECONDS = 10.0  # for a record that another client has put in the place of the job's own to be put back
NEXT_ATTEMPT_SECONDS = 10.0  # before the next attempt in the same pods when two have made no progress
SHORTEST_SECONDS = 0.5  # for each question to the store, even when the time is up
LINGER_SECONDS = 5.0  # for which the lead stays for those who still read the reason

T = TypeVar("T")


class WorkerAttempt:
    """One attempt in this process. ``before``: the verdict that ended the previous attempt in the same pods."""

    def __init__(
        self,
        environment: Environment,
        record: RunRecord,
        store: Store,
        log_tee: LogTee,
        stop: Stop,
        lead: Lead,
        alerter: Alerter,
        heartbeat: Heartbeat,
        before: Verdict | None = None,
    ) -> None:
        self._environment = environment
        self._lead = lead
        self._alerter, self._heartbeat = alerter, heartbeat
        self._record = record
        self._store = store
        self._log_tee = log_tee
        self._stop = stop
        self._before = before
        self._ledger = Ledger(
            store, record, worker=environment.worker, pod=environment.pod, pod_uid=environment.pod_uid
        )
        self._member: Member | None = None
        self._verdict: Verdict | None = None
        self._closing = threading.Lock()
        self._num_memory_kills = num_memory_kills()
        self._is_silent = False  # the store, at the end
        self._until = 0.0  # monotonic seconds; set anew where an end is written down
        self._deadline = math.inf  # of the run, in the lead; monotonic seconds
        self._late: Verdict | None = None  # for an end by it
        self.launcher: Launcher | None = None
        self.lease: Lease | None = None
        self.root: Verdict | None = None
        """The verdict on the worker whose end came first, if it is known; from ``close`` on."""
        self.finishes = False
        """Whether the ranks of all workers have ended well, and the result is being published."""

    @property
    def ending(self) -> bool:
        """Returns whether its end is being recorded."""
        return self._closing.locked()

    def run(self, member: Member, template: Template) -> Verdict:
        """Runs the attempt; records and returns the verdict on this worker.

        Raises:
            StorageFailed: reason "conflict" if the job was given up, for example by a client that could not reach it.
            InvalidInput: an input cannot be read, or has changed since it was submitted.
            PeersLost, Stopped: another worker has ended, or a signal has come.
            Replaced: another worker leads the group now.
        """
        self._member = member
        environment, worker = self._environment, self._environment.worker
        account: Account | None = None
        lease: Lease | None = None
        refused: Verdict | None = None
        if member.is_lead:
            member.hear(GroupPhase.CLAIM)
            patiently(self._lead.check, self._stop)
            patiently(lambda: self._ledger.check_wanted(SUPERSEDED_SECONDS), self._stop)
            account = patiently(self._ledger.account, self._stop)
            if self._before and account.num_charged > 1:  # what was in the way of the last two may need a moment to go
                self._stop.pause(NEXT_ATTEMPT_SECONDS)
            member.look()  # a group that has ended needs no number
            lease = patiently(self._ledger.claim, self._stop)
            self._begin(lease)  # its end is on record also where the others never hear of it
            late = self._limit_time(account.began or lease.started)
            refused = account.verdict(worker) if account.spent else late
        order = member.hear(GroupPhase.PREPARE, lease=lease, refused=refused)
        assert order.lease is not None  # the lead has claimed it before that phase
        if not member.is_lead:
            self._begin(order.lease)
        number = order.lease.attempt
        if order.refused:
            return self.close(replace(order.refused, worker=worker))
        before = self._before
        if before:
            reporting.say(RanksRestart(worker=worker, attempt=number, message=before.message, follows=before.worker))
        elif environment.is_elastic:
            reporting.say(WorkerJoins(worker=worker, attempt=number))
        last_step = 0
        if account:  # the whole group needs to hear it once
            reason, last_step = patiently(partial(self._ledger.end_of, number - 1), self._stop)
            if before:
                reason = before.reason
            reporting.say(
                AttemptStarts(
                    attempt=number,
                    position=account.num_started + 1,
                    at_most=account.at_most,
                    num_workers=len(order.members),
                    num_ranks=len(order.members) * environment.num_ranks,
                    num_threads=environment.num_threads,
                    after=reason if account.num_started else "",
                    step=account.saved_step,
                )
            )
        inputs = RunInputs(environment, self._record, self._store, self._stop).bring(member.look)
        template.start(environment.job_dir / SOURCE, has_task=self._record.run.task is not None)
        hang_after = self._record.run.hang_after
        launcher = Launcher(environment, self._log_tee, self._stop, member, template, hang_after, self._watch)
        self.launcher = launcher
        if not launcher.run({"TRAIN_FUNC_ATTEMPT": str(number), LAST_STEP: str(last_step), **inputs}):
            return self.close(launcher.hang.verdict(worker) if launcher.hang else None)
        self.finish(member, launcher.ends())
        member.leave(SILENCE_SECONDS)
        return self.close(Verdict(exits.DONE, None, "all ranks of all workers ended", worker))

    def _limit_time(self, began: str) -> Verdict | None:
        """Sets the time until the deadline of the run; returns a verdict if it is over.

        The deadline of a pod begins anew with each pod. ``began``: when the first group of the submission formed.
        """
        deadline = self._record.run.deadline
        spent = (datetime.now(UTC) - datetime.fromisoformat(began)).total_seconds()
        self._deadline = time.monotonic() + deadline - spent
        message = f"the job was not done after {deadline} s, its deadline; its first attempt began at {began}"
        self._late = Verdict(exits.DEADLINE, "deadline", message, self._environment.worker)
        return self._late if spent >= deadline else None

    def _watch(self, mark: Mark | None = None) -> None:
        """Takes the last sign of progress of rank 0, if it runs here; only in the lead.

        Raises StorageFailed if the store refuses the key of this pod.
        """
        if time.monotonic() >= self._deadline and not self._stop.requested:
            self._stop.request("the deadline of the run")
        self._heartbeat.check()
        if mark:
            self._alerter.look(mark, self._record.run.hang_after)

    def _begin(self, lease: Lease) -> None:
        self.lease = lease
        keys = self._record.keys.attempt(lease.attempt)
        history = HistoryUpload(keys, self._store.put) if self._is_lead else None  # rank 0 alone reports metrics
        self._log_tee.begin(lambda log: self._ledger.put_log(lease.attempt, log), history)

    def finish(self, member: Member, ends: list[RankEnd]) -> None:
        """Publishes the result of the run, and records the success of this worker.

        Waits until the ranks of all workers have ended well, because only then there is a result. Publishes before any
        worker leaves with exit code 0, which ends the job.
        """
        environment, lease, stop = self._environment, self.lease, WithinGrace(self._stop)
        assert lease is not None  # no rank starts before
        left = left_loop_verdict(ends, worker=environment.worker)
        watch = self._watch if member.is_lead else None
        member.hear(GroupPhase.FINISH, GroupPhase.DONE, watch=watch, status=Status.ENDED, left=left)
        self.finishes = True
        if member.is_lead:
            first = next((end.outcome for end in ends if end.rank == 0), None)
            publication = Publication(environment.work_dir, self._store, self._record, lease.attempt)
            publication.conclude(rank_folder(environment.work_dir, 0), first)
            self._alerter.succeed(publication.publish(stop))  # before what may be lost
            member.tell(status=Status.PUBLISHED)
        waiting = patient(self._store, stop, RECORD_SECONDS, "keep the files of ranks")
        prefix = self._record.keys.attempt(lease.attempt).output
        for rank in (end.rank for end in ends):
            keep(waiting, f"{prefix}/rank-{rank}", rank_folder(environment.work_dir, rank), f"rank {rank}")
        self._keep_trackers(waiting)
        if any(end.outcome and end.outcome.separate for end in ends):
            print("the ranks never formed one process group: each has trained by itself")
        member.hear(GroupPhase.DONE, stop=stop)
        self._until = time.monotonic() + RECORD_SECONDS
        self._keep(Verdict(exits.DONE, None, "all ranks ended", environment.worker), ends)

    def close(self, reason: Verdict | None, root: Verdict | None = None) -> Verdict:
        """Records the verdict on this worker, if the store answers, and returns it; later calls return the first one.

        Args:
            reason: why the supervisor ended the attempt, unless the ranks did.
            root: the verdict on the worker whose end came first, if it is known.
        """
        with self._closing:
            self._until = time.monotonic() + RECORD_SECONDS
            if self._verdict is None:
                self._verdict = self._close(self.launcher.ends() if self.launcher else [], reason, root)
            return self._verdict

    def _close(self, ends: list[RankEnd], reason: Verdict | None, root: Verdict | None) -> Verdict:
        was_near_limit = self.launcher is not None and self.launcher.out_of_memory
        out_of_memory = was_near_limit or num_memory_kills() > self._num_memory_kills
        verdict = worker_verdict(ends, worker=self._environment.worker, out_of_memory=out_of_memory)
        if verdict is None or (reason and not verdict.root_cause):
            assert reason is not None
            verdict = reason
        if verdict.exit_code == exits.DONE:
            return verdict
        if self._member:
            left = left_loop_verdict(ends, worker=verdict.worker)
            self._member.fail(verdict, left, went_on=any(end.went_on for end in ends))
        if self._late and verdict.exit_code == exits.STOPPED and time.monotonic() >= self._deadline:
            verdict = self._late  # once the others have heard of a stop, for which their ranks save
        if verdict.exit_code == exits.PEER and not verdict.root_cause:
            if root is None and self._member and not self._stop.requested:
                root = self._member.root()
                if root is None and self.lease:  # the coordinator has gone, and may have put it on record
                    root = self._bounded(partial(self._ledger.root_of, self.lease.attempt))
                if root is None and self._member.has_gone and not self._member.is_lead:
                    root = lost_verdict(self._member.lead)
            verdict = follower_verdict(root, verdict)
        is_told = not verdict.retryable or verdict.exit_code in (exits.STOPPED, exits.RENDEZVOUS)
        if self.lease is None and verdict.root_cause and is_told:
            unformed = self._bounded(self._ledger.claim_unformed)
            if unformed:
                self._begin(unformed)
        if self.lease:
            was_stopped = {exits.STOPPED, exits.RESIZED} & {verdict.exit_code, root.exit_code if root else 0}
            is_free = was_stopped or not self.lease.formed  # as of pods that wait for room for the others
            if verdict.retryable and not is_free:
                account = self._bounded(partial(self._ledger.account, self.lease.attempt, self._step))
                if account and account.spent and not self._bounded(self._ledger.is_published):
                    verdict = follower_verdict(root, account.verdict(self._environment.worker, root or verdict))
        self.root = verdict if verdict.root_cause else root
        if self._member.is_lead if self._member else self._environment.worker == 0:
            self._alerter.end(verdict, self.root or verdict)
        if self.lease:
            self._keep(verdict, ends)
        return verdict

    def leave(self) -> None:
        """Leaves the group after ``close``; the lead waits a little for workers that still ask for the reason."""
        if self._member:
            self._member.leave(LINGER_SECONDS if self.root and not self._stop.requested else 0.0)

    def next(self) -> Self | None:
        """Returns the next attempt of the group in its pods; None if this worker has to leave it.

        It leaves after a signal, after a verdict that says so, or if the coordinator ends the group. An elastic group
        whose coordinator has gone gets another one.
        """
        root, verdict, launcher = self.root, self._verdict, self.launcher
        if self._stop.requested or self._member is None or verdict is None or not verdict.retryable:
            return None
        if self.finishes and not self._member.has_gone:  # the lead completes the result, and the group waits for that
            return None
        is_stuck = launcher is not None and any(end.exit_code is None for end in launcher.ends())
        if is_stuck:  # a rank that cannot be ended may hold what another attempt needs
            return None
        if not self._member.begin_again() and not (self._environment.is_elastic and self._member.has_gone):
            return None
        another = (self._environment, self._record, self._store, self._log_tee, self._stop, self._lead, self._alerter)
        return type(self)(*another, self._heartbeat, root or verdict)

    @property
    def _is_lead(self) -> bool:
        return self._member is not None and self._member.is_lead

    @property
    def _step(self) -> int:
        """Returns the last step of the training that is done."""
        return self.launcher.step if self.launcher else 0

    def _keep(self, verdict: Verdict, ends: list[RankEnd]) -> None:
        lease = self.lease
        assert lease is not None
        self._bounded(lambda: self._ledger.write_end(lease, verdict, ends, self._step))
        if verdict.exit_code != exits.DONE:  # else they were kept with the result
            self._bounded(lambda: self._keep_trackers(self._store))
        self._log_tee.flush(self.seconds_left())

    def _keep_trackers(self, store: Store) -> None:
        if self._is_lead and self.lease:
            prefix = self._record.keys.attempt(self.lease.attempt).prefix
            for name in FOLDERS:
                keep(store, f"{prefix}/{name}", self._environment.work_dir / name, "trackers")

    def _bounded(self, call: Callable[[], T]) -> T | None:
        """Returns the result of the call; after a failure of the store it notes that and returns None."""
        try:
            return call_with_timeout(max(SHORTEST_SECONDS, self.seconds_left()), call)
        except (TimeoutError, StorageFailed) as failure:
            self._is_silent = self._is_silent or isinstance(failure, TimeoutError)
            print(f"the store failed at the end of this attempt: {str(failure) or 'no answer'}")
            return None

    def seconds_left(self) -> float:
        """Returns the seconds left to wait for the store, which gets the log last; fewer after it was silent."""
        until = min(self._until, self._stop.all_until) if self._stop.requested else self._until
        return max(0.0 if self._is_silent else SHORTEST_SECONDS, until - time.monotonic())
