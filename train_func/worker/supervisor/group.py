"""One worker in the group of a job: how it finds worker 0, what it reports, and which orders it waits for.

The coordinator, in worker 0, decides (``coordinator.py``). A thread reports every second, so that a worker whose work
waits for something else stays alive for the others.
"""

import contextlib
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from train_func.wire.events import WaitsForPeers
from train_func.wire.records import Verdict
from train_func.worker.environment import Environment
from train_func.worker.rank import reporting
from train_func.worker.stop import Stop, Stopped
from train_func.worker.store_wait import TELL
from train_func.worker.supervisor.connection import Connection, Host
from train_func.worker.supervisor.coordinator import Coordinator, Order, Phase, Report, Status

BEAT = 1.0  # seconds between two reports while nothing changes
RETRY = 0.3  # seconds between two tries to reach worker 0
POLL, LONGEST_POLL = 0.02, 0.25  # the same while an order is waited for: rarely, where the wait is long

Ask = Callable[[Report], Order]


class NotFormed(Exception):
    """The group did not come together in time."""


class PeersLost(Exception):
    """The group cannot go on. ``verdict``: why, when a worker could say it."""

    def __init__(self, message: str, verdict: Verdict | None = None) -> None:
        super().__init__(message)
        self.verdict = verdict


class Member:
    """This worker in a group that has formed, over all its rounds. ``address``: where the others reach it."""

    def __init__(self, ask: Ask, report: Report, address: str, stop: Stop) -> None:
        """``ask``: brings a report to the coordinator and returns its order; raises OSError when it has gone."""
        self._ask, self._report, self.address, self._stop = ask, replace(report, round=1), address, stop
        self._lock = threading.Lock()
        self._order = Order(Phase.WAIT)
        self._verdict: Verdict | None = None
        self._has_gone = False

    def beat(self) -> None:
        """Reports every second, until the coordinator has gone."""
        while not self._has_gone:
            self.tell()
            time.sleep(BEAT)

    def tell(self, **changes: Any) -> Order:
        """Reports, with these changes since the last report; returns the order."""
        with self._lock:
            self._report = replace(self._report, **changes)
            if not self._has_gone:
                try:
                    self._order = self._ask(self._report)
                    self._has_gone = not self._order.round  # worker 0 has begun anew, with another group
                except OSError:
                    self._has_gone = True
            if self._order.round == self._report.round:
                self._verdict = self._order.verdict
            return self._order

    def look(self) -> None:
        """Raises PeersLost when the round has ended, or the coordinator has gone."""
        if self._verdict:
            raise PeersLost(f"worker {self._verdict.worker} has ended", self._verdict)
        if self._has_gone:
            raise PeersLost("the coordinator of the group has gone, and worker 0 with it")

    def hear(self, *phases: Phase, stop: Stop | None = None, **changes: Any) -> Order:
        """Reports these changes, and returns the order when the group is in one of these phases.

        Raises:
            PeersLost: the round has ended.
            Stopped: ``stop``, or that of this worker, was requested.
        """
        order, pause = self.tell(**changes), POLL
        while order.phase not in phases or order.round != self._report.round:
            self.look()
            (stop or self._stop).pause(pause)
            order, pause = self.tell(), min(1.1 * pause, LONGEST_POLL)
        return order

    def fail(self, verdict: Verdict, left: Verdict | None = None, *, went_on: bool = False) -> Verdict | None:
        """Reports how this worker has failed, and returns why the round ends, when that is known.

        Args:
            verdict: of this worker.
            left: the verdict that holds where a rank of it has left its steps while another worker's went on.
            went_on: whether a rank of it went on.
        """
        self.tell(status=Status.FAILED, verdict=verdict, left=left, went_on=went_on)
        return self._verdict

    def root(self) -> Verdict | None:
        """Returns why the round ends, after this worker has reported that it failed; None where that is not known."""
        with contextlib.suppress(PeersLost, Stopped):
            self.hear(Phase.FINISH, Phase.DONE)
        return self._verdict

    def wait(self, waits: bool) -> bool:
        """Reports whether every rank of this worker waits for others; returns whether that holds for all workers."""
        order = self._order if waits == self._report.waits else self.tell(waits=waits)
        return waits and order.all_wait

    def begin_again(self) -> bool:
        """Whether all workers begin another round."""
        with self._lock:
            self._report = Report(self._report.worker, self._report.pod, self._report.round + 1)
            self._verdict = None
        while (order := self.tell()).round != self._report.round:
            if order.phase in (Phase.DONE, Phase.EXIT) or self._has_gone or self._stop.requested:
                return False
            time.sleep(POLL)
        return True

    def leave(self, seconds: float) -> None:
        """Worker 0 leaves last, or after ``seconds``, so that the others hear its last orders."""
        end = time.monotonic() + seconds
        order = self.tell(status=Status.LEFT)
        with contextlib.suppress(Stopped):
            while self._report.worker == 0 and order.members and time.monotonic() < end:
                self._stop.pause(POLL)
                order = self.tell()


def meet(environment: Environment, stop: Stop) -> Member:
    """Waits for the group; raises NotFormed when the time for that is up, Stopped on a signal."""
    print(f"worker {environment.worker} meets the others at {environment.endpoint}")
    report = Report(environment.worker, uuid.uuid4().hex)
    seconds = environment.join_timeout
    until, notice = time.monotonic() + seconds, time.monotonic() + TELL
    way: tuple[Ask, str] | None = None
    while True:
        try:
            way = way or _reach(environment)
            order, pause = way[0](report), BEAT / 10
        except OSError as error:  # a name not yet known, a host not yet there
            way, pause = None, RETRY
            order = Order(Phase.WAIT, why=f"{type(error).__name__}: {error}")
        if way and order.round:
            member = Member(way[0], report, way[1], stop)
            threading.Thread(target=member.beat, name="reports", daemon=True).start()
            return member
        if time.monotonic() > until:
            raise NotFormed(
                f"the {environment.num_workers} workers did not come together at {environment.endpoint} "
                f"within {seconds:.0f} s ({order.why}); see whether every pod was started and can reach the first"
            )
        if time.monotonic() > notice:
            notice = time.monotonic() + TELL
            reporting.say(WaitsForPeers(endpoint=environment.endpoint, why=order.why))
        stop.pause(pause)


def _reach(environment: Environment) -> tuple[Ask, str]:
    """Returns the way to the coordinator, which begins in worker 0, and the address of this worker. Raises OSError."""
    address = own_address(environment.endpoint) if environment.num_workers > 1 else "127.0.0.1"
    host, port = _split(environment.endpoint)
    if environment.worker:
        return Connection(host, port, environment.group_key).report, address
    coordinator = Coordinator(environment.num_workers)
    if environment.num_workers > 1:
        Host(coordinator, environment.group_key, port)
    return coordinator.report, address


def _split(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.rpartition(":")
    return host.strip("[]"), int(port)


def own_address(endpoint: str) -> str:
    """The address under which the other workers reach this one: that of the way to the endpoint; OSError if none."""
    host, port = _split(endpoint)
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as way:
        way.connect(address)  # a datagram socket sends nothing by this
        return str(way.getsockname()[0])


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """A free port of this machine. It is bound and not listening: none but who asks for its number is given it."""
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    with socket.socket(family) as port:
        if family == socket.AF_INET6:
            port.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        port.bind(("", 0))
        yield port.getsockname()[1]
