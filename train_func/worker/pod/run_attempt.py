"""One attempt as this worker lives it: it gets its number, is finished together, and ends on record."""

import contextlib
import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TypeVar

from train_func import exits
from train_func.attempt_records import Lease, Verdict
from train_func.errors import InvalidInput, StorageFailed
from train_func.events import PublishesPending
from train_func.records import RunRecord
from train_func.storage import Store
from train_func.storage.retry import call_with_timeout
from train_func.worker.pod import reporting
from train_func.worker.pod.attempt_store import Attempts, Start
from train_func.worker.pod.environment import Environment
from train_func.worker.pod.history import History
from train_func.worker.pod.log_tee import LogTee
from train_func.worker.pod.peers import Peers
from train_func.worker.pod.pending import PUBLISH_SECONDS, Pending
from train_func.worker.pod.processes import num_memory_kills
from train_func.worker.pod.publish import complete
from train_func.worker.pod.rank_end import RankEnd
from train_func.worker.pod.stop import Stop, WithinGrace
from train_func.worker.pod.store_wait import patient, patiently
from train_func.worker.pod.verdict import following, of_ranks

T = TypeVar("T")


class Refused(Exception):
    """The attempt may not begin."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.message)
        self.verdict = verdict


class Attempt:
    """The attempt of this process; without a store it is number 1 and leaves no record."""

    def __init__(
        self, environment: Environment, record: RunRecord, store: Store | None, log_tee: LogTee, stop: Stop
    ) -> None:
        self._environment = environment
        self._timings = environment.timings
        self._record = record
        self._store = store
        self._log_tee = log_tee
        self._stop = stop
        self._attempts = (
            Attempts(store, record, worker=environment.worker, pod=environment.pod, pod_uid=environment.pod_uid)
            if store
            else None
        )
        self._peers: Peers | None = None
        self._verdict: Verdict | None = None
        self._closing = threading.Lock()
        self._num_memory_kills = num_memory_kills()
        self._pending = Pending(environment.work_dir)
        self._publishing = False
        self._silent = False  # the store, at the end
        self._until = 0.0  # monotonic seconds; set anew where an end is written down
        self.lease: Lease | None = None
        self.over: Verdict | None = None
        """A final end of another worker while this one still waits for the group, which then never forms."""

    @property
    def ending(self) -> bool:
        """Whether its end is being written down."""
        return self._closing.locked()

    @property
    def publishes(self) -> bool:
        """Whether what was trained is left to be published, or is put on record as published."""
        return self._publishing or self._pending.is_sealed

    def prepare(self) -> None:
        """Makes sure that the store can be used, and keeps an eye on it until the group forms."""
        if not (store := self._store) or not (attempts := self._attempts):
            return
        patiently(lambda: store.probe(self._record.keys.prefix), self._stop, self._timings)
        known = patiently(attempts.end_keys, self._stop, self._timings)
        threading.Thread(target=self._watch, args=(attempts, known), name="end of the job", daemon=True).start()

    def _watch(self, attempts: Attempts, known: set[str]) -> None:
        while self.lease is None and self.over is None:
            time.sleep(self._timings.watch)
            with contextlib.suppress(StorageFailed):  # the next call that needs the store says that it is away
                found = attempts.final_end(known)
                if self.lease is None:  # else a peer of the group that has formed meanwhile
                    self.over = found

    def open(self, peers: Peers) -> int:
        """Claims the number (worker 0) or hears it; raises Refused when the attempts are used up."""
        self._peers = peers
        if self._environment.worker == 0:
            start = self._claim()
            peers.tell_start(json.dumps(asdict(start)))
        else:
            plain = json.loads(peers.hear_start())
            refused = Verdict(**plain["refused"]) if plain["refused"] else None
            start = Start(Lease(**plain["lease"]), plain["num_started"], plain["at_most"], refused)
        self._begin(start.lease)
        if start.refused:
            raise Refused(replace(start.refused, worker=self._environment.worker))
        if self._environment.worker == 0:  # the whole group needs to hear it once
            reporting.say(start.event(self._environment))
        return start.lease.attempt

    def _claim(self) -> Start:
        environment = self._environment
        attempts = self._attempts
        if attempts is None:
            record, pod, pod_uid = self._record, environment.pod, environment.pod_uid
            lease = Lease(attempt=1, generation=record.generation, pod=pod, pod_uid=pod_uid, submitted=record.submitted)
            return Start(lease, 0, record.run.max_attempts, None)
        account = patiently(attempts.account, self._stop, self._timings)
        lease = patiently(attempts.claim, self._stop, self._timings)
        refused = account.verdict(environment.worker) if account.spent else None
        return Start(lease, account.num_started, account.at_most, refused)

    def _begin(self, lease: Lease) -> None:
        self.lease = lease
        if (attempts := self._attempts) and (store := self._store):
            keys, is_first = self._record.keys.attempt(lease.attempt), self._environment.worker == 0
            history = History(keys, store.put) if is_first else None  # rank 0 alone reports metrics
            self._log_tee.begin(lambda log: attempts.put_log(lease.attempt, log), history)

    def finish(self, peers: Peers, ends: list[RankEnd]) -> None:
        """Makes sure that what was to be published is there, and puts this worker's success on record.

        Before the group parts, because the job is over as soon as the first worker has left with exit code 0.
        """
        opened = any(end.outcome is not None and end.outcome.session for end in ends)
        if opened and self._environment.worker == 0 and (store := self._store):
            waiting = patient(store, self._stop, PUBLISH_SECONDS, "see that all is published", self._timings)
            if not complete(waiting, self._record):
                raise InvalidInput(
                    f"every rank ended well but {self._record.keys.prefix}/result.json is not in {store.address}: "
                    "call session.publish(trainer) on every rank as the last step",
                    cause="code",
                )
        if any(end.separate for end in ends):
            print("the ranks never formed one process group: each has trained by itself")
        self._keep_done("all ranks ended", ends)

    def publish_pending(self, ends: list[RankEnd]) -> Verdict | None:
        """Publishes what the ranks of this pod have trained and not published before they ended; None if nothing is so.

        After a signal to stop too, as long as the ranks would have had.

        Raises:
            StorageFailed: it cannot be published.
            Stopped: that time is up.
        """
        if (number := self._pending.attempt) is None or not (store := self._store) or not (attempts := self._attempts):
            return None
        reporting.say(PublishesPending(attempt=number))
        self._publishing = True
        if self._peers:
            self._peers.tell_whether_publishing(True)
        try:
            self._pending.upload(store, self._record, WithinGrace(self._stop))
            self.lease = self.lease or attempts.lease(number)
            return self._keep_done("what its ranks had trained is published", ends)
        except BaseException:
            self._publishing = False
            raise

    def _keep_done(self, message: str, ends: list[RankEnd]) -> Verdict:
        self._until = time.monotonic() + self._timings.record
        done = Verdict(exits.DONE, None, message, self._environment.worker)
        self._keep(done, ends)
        return done

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
        out_of_memory = num_memory_kills() > self._num_memory_kills
        found = of_ranks(ends, worker=self._environment.worker, out_of_memory=out_of_memory)
        verdict = found if found and (found.root_cause or own is None) else own
        assert verdict is not None
        if verdict.exit_code == exits.DONE:
            return verdict
        if found and found.root_cause and self._left_when_all_was_done(ends):
            return self._keep_done("its ranks left with exit code 0 after the model had been published", ends)
        if verdict.exit_code == exits.PEER and not verdict.root_cause:
            root = root or self._ask_for_root()
            verdict = following(root, verdict)
        if self._peers:
            self._peers.tell(verdict)
            if self._environment.worker == 0:
                self._peers.tell_whether_publishing(False)
        verdict = self._charged(verdict, root)
        if self._lease_for(verdict):
            self._keep(verdict, ends)
        if self._peers and not self._stop.requested:
            self._peers.leave(self._timings.linger if verdict.root_cause or root else 0.0)
        return verdict

    def _left_when_all_was_done(self, ends: list[RankEnd]) -> bool:
        """os._exit(0) behind publish: some write it so, because what they import aborts where Python ends."""
        attempts = self._attempts
        left = all(end.exit_code == 0 for end in ends if end.failed)
        return left and attempts is not None and bool(self._bounded(attempts.is_published))

    def _ask_for_root(self) -> Verdict | None:
        if self._peers is None or self._stop.requested:
            return None
        if (told := self._peers.verdict(self._timings.root)) and told.worker != self._environment.worker:
            return told
        attempts, lease = self._attempts, self.lease
        if attempts is None or lease is None:
            return None
        return self._bounded(lambda: attempts.root_of(lease.attempt))

    def _charged(self, verdict: Verdict, root: Verdict | None) -> Verdict:
        """The final verdict instead, when this attempt was the last one and leaves no model.

        A stop from outside costs nothing.
        """
        free = {exits.STOPPED, exits.RENDEZVOUS} & {verdict.exit_code, root.exit_code if root else None}
        attempts, lease = self._attempts, self.lease
        if free or attempts is None or lease is None or not verdict.retryable:
            return verdict
        account = self._bounded(lambda: attempts.account(lease.attempt))
        if account is None or not account.spent or self._leaves_model(attempts):
            return verdict
        return account.verdict(self._environment.worker, root or verdict)

    def _leaves_model(self, attempts: Attempts) -> bool:
        """Whether what was trained is published, or worker 0, which alone may hold it, is publishing it."""
        if self._peers and self._environment.worker:
            publishing = self._peers.is_publishing(self._timings.publishing)
            self._until = time.monotonic() + self._timings.record
            if publishing:
                return True
        return bool(self._bounded(attempts.is_published))

    def _lease_for(self, verdict: Verdict) -> bool:
        """Whether this end goes on record: under the group's number, or under that of no group if none was formed."""
        attempts = self._attempts
        if attempts is None or self.lease:
            return attempts is not None
        if not verdict.root_cause or (verdict.retryable and verdict.exit_code not in (exits.STOPPED, exits.RENDEZVOUS)):
            return False
        if lease := self._bounded(attempts.claim_unformed):
            self._begin(lease)
        return lease is not None

    def _keep(self, verdict: Verdict, ends: list[RankEnd]) -> None:
        attempts, lease = self._attempts, self.lease
        if attempts and lease:
            self._bounded(lambda: attempts.write_end(lease, verdict, ends))
            self._log_tee.flush(self.seconds_left())

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
