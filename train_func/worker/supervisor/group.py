"""One worker in the group of a job: joins the group, sends reports, and waits for orders.

The coordinator in the lead decides (``coordinator.py``). A thread reports every second, so that a worker that is busy
with something else counts as alive.
"""

import contextlib
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from train_func.errors import StorageFailed
from train_func.process.timeout import begin
from train_func.text import counted
from train_func.wire.events import WaitsForPeers
from train_func.wire.records import Verdict
from train_func.worker.environment import Environment
from train_func.worker.rank import reporting
from train_func.worker.stop import Stop, Stopped
from train_func.worker.store_wait import NOTICE_SECONDS, patiently
from train_func.worker.supervisor.coordinator import GroupPhase, Order, Report, Status, lost_verdict
from train_func.worker.supervisor.lead import Lead, Way
from train_func.worker.supervisor.usage import Usage

REPORT_SECONDS = 1.0  # between two reports while nothing changes
RETRY_SECONDS = 0.3  # between two tries to reach the lead
POLL_SECONDS, LONGEST_POLL_SECONDS = 0.02, 0.25  # between two reports that wait for an order: at first, and at most


class NotFormed(Exception):
    """The group did not form in time."""


class PeersLost(Exception):
    """The group cannot go on. ``verdict``: the reason, if a worker has reported it."""

    def __init__(self, message: str, verdict: Verdict | None = None) -> None:
        super().__init__(message)
        self.verdict = verdict


class Member:
    """This worker in a group that has formed, for all its rounds. ``way``: the way to the coordinator."""

    def __init__(self, way: Way, report: Report, stop: Stop) -> None:
        self._way, self._report, self._stop = way, report, stop
        self.address, self.usages = way.address, way.usages
        self.lead, self.is_lead = way.lead, way.lead == report.worker
        self.usage: Usage | None = None
        """The last measured usage of this worker; the next report has it."""
        self._lock = threading.Lock()
        self._order = Order(GroupPhase.WAIT)
        self._verdict: Verdict | None = None
        self.has_gone = False
        """Whether the coordinator has gone."""

    @property
    def num_left(self) -> int:
        """Returns the number of workers that are left when the lead has gone."""
        return max(1, len(self._order.members) - 1)

    def beat(self) -> None:
        """Reports every second, until the coordinator has gone."""
        while not self.has_gone:
            self.tell()
            time.sleep(REPORT_SECONDS)

    def tell(self, **changes: Any) -> Order:
        """Reports these changes; returns the order."""
        with self._lock:
            usage, self.usage = self.usage, None
            self._report = replace(self._report, usage=usage, **changes)
            if not self.has_gone:
                try:
                    self._order = self._way.ask(self._report)
                    self.has_gone = not self._order.round  # the lead has begun anew, with another group
                except OSError:
                    self.has_gone = True
            if self._order.round == self._report.round:
                self._verdict = self._order.verdict
            return self._order

    def look(self) -> None:
        """Raises PeersLost if the round has ended, or the coordinator has gone."""
        if self._verdict:
            raise PeersLost(f"worker {self._verdict.worker} has ended", self._verdict)
        if self.has_gone:
            raise PeersLost("another worker leads the group" if self.is_lead else lost_verdict(self.lead).message)

    def hear(
        self,
        *phases: GroupPhase,
        stop: Stop | None = None,
        watch: Callable[[], object] | None = None,
        **changes: Any,
    ) -> Order:
        """Reports these changes, and returns the order once the group is in one of these phases.

        ``watch`` is called again and again meanwhile, and may raise.

        Raises:
            PeersLost: the round has ended.
            Stopped: ``stop``, or that of this worker, was requested.
        """
        order, pause = self.tell(**changes), POLL_SECONDS
        notice = time.monotonic() + NOTICE_SECONDS
        while order.phase not in phases or order.round != self._report.round:
            self.look()
            if watch:
                watch()
            if order.phase is GroupPhase.WAIT and time.monotonic() > notice:
                notice = time.monotonic() + NOTICE_SECONDS
                reporting.say(WaitsForPeers(endpoint=self.address, why=order.why))
            (stop or self._stop).pause(pause)
            order, pause = self.tell(), min(1.1 * pause, LONGEST_POLL_SECONDS)
        return order

    def fail(self, verdict: Verdict, left: Verdict | None = None, *, went_on: bool = False) -> Verdict | None:
        """Reports the failure of this worker, and returns why the round ends, if it is known.

        Args:
            verdict: the verdict on this worker.
            left: the verdict if a rank of this worker has left its steps while a rank of another worker went on.
            went_on: whether a rank of this worker went on.
        """
        self.tell(status=Status.FAILED, verdict=verdict, left=left, went_on=went_on)
        return self._verdict

    def root(self) -> Verdict | None:
        """Returns why the round ends, after this worker has reported its failure; None if that is not known."""
        with contextlib.suppress(PeersLost, Stopped):
            self.hear(GroupPhase.FINISH, GroupPhase.DONE)
        return self._verdict

    def wait(self, waits: bool) -> bool:
        """Reports whether every rank of this worker waits for others; returns whether that holds for all workers."""
        order = self._order if waits == self._report.waits else self.tell(waits=waits)
        return waits and order.all_wait

    def begin_again(self) -> bool:
        """Returns whether all workers begin another round."""
        with self._lock:
            self._report = Report(self._report.worker, self._report.pod, self._report.round + 1)
            self._verdict = None
        while (order := self.tell()).round != self._report.round:
            if order.phase in (GroupPhase.DONE, GroupPhase.EXIT) or self.has_gone or self._stop.requested:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def leave(self, seconds: float) -> None:
        """Leaves the group; the lead leaves last, within ``seconds``, so that the others hear its last orders."""
        end = time.monotonic() + seconds
        order = self.tell(status=Status.LEFT)
        with contextlib.suppress(Stopped):
            while self.is_lead and order.members and time.monotonic() < end:
                self._stop.pause(POLL_SECONDS)
                order = self.tell()


def meet(
    environment: Environment, stop: Stop, lead: Lead, prepare: Callable[[], object], before: Member | None
) -> Member:
    """Finds the lead, waits for the group, and returns this worker as its member.

    Args:
        environment: the environment of this worker.
        stop: the request to stop.
        lead: finds the lead of the group.
        prepare: does slow work that does not need the others, if they train already.
        before: this worker in the group that has lost its lead, if it was in one.

    Raises:
        NotFormed: the group did not form in time.
        StorageFailed: the store that names the lead is away for too long, or denies.
        Stopped: on a signal.
    """
    print(f"worker {environment.worker} meets the others at {lead.where}")
    report = Report(environment.worker, uuid.uuid4().hex, expects=before.num_left if before else 0)
    seconds = environment.join_timeout
    until, notice = time.monotonic() + seconds, time.monotonic() + NOTICE_SECONDS
    way: Way | None = None
    preparation: Future[object] | None = None
    while True:
        try:
            way = way or patiently(lambda: lead.find(is_left=before is not None), stop)
            order, pause = way.ask(report), REPORT_SECONDS / 10
        except StorageFailed:
            raise
        except OSError as error:  # a name not yet known, a host not yet there
            way, pause = None, RETRY_SECONDS
            order = Order(GroupPhase.WAIT, why=f"{type(error).__name__}: {error}")
        if way and order.round:
            member = Member(way, replace(report, round=order.round, status=Status.READY, expects=0), stop)
            threading.Thread(target=member.beat, name="reports", daemon=True).start()
            return member
        if order.phase is GroupPhase.PREPARE:
            until = time.monotonic() + seconds  # the others are there
            preparation = preparation or begin(prepare)
            if preparation.done():
                preparation.result()
                report = replace(report, status=Status.PREPARED)
        if time.monotonic() > until:
            raise NotFormed(
                f"the group of {counted(environment.num_workers, 'worker')} did not form within {seconds:.0f} s "
                f"({order.why}); check that every pod runs and can reach {lead.where}"
            )
        if time.monotonic() > notice:
            notice = time.monotonic() + NOTICE_SECONDS
            reporting.say(WaitsForPeers(endpoint=lead.where, why=order.why))
        stop.pause(pause)
