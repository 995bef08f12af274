"""The group of the workers of a job: how they meet, and what their supervisors tell each other.

Worker 0 hosts the store of the group, the others find it, and all answer before any rank starts. They tell each other
signs of life, ends and verdicts. A worker that ends badly ends the attempt for all, until the ranks of all workers have
ended well: from then on only worker 0 counts, which publishes.
"""

import contextlib
import json
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from train_func.events import WaitsForPeers
from train_func.records import Verdict
from train_func.worker.environment import Environment
from train_func.worker.rank import reporting
from train_func.worker.stop import Stop, Stopped, WithinGrace
from train_func.worker.supervisor.group_store import (
    FORMED,
    TAKEN,
    WHO_IS_MISSING,
    GroupStore,
    Host,
    KeyValue,
    Membership,
    RemoteStore,
)

BEAT, SILENCE = 1.0, 15.0  # seconds
LEFT = "left the steps"


class NotFormed(Exception):
    """The group did not come together in time."""


class PeersLost(Exception):
    """The group cannot go on. ``verdict``: why, when a worker could say it."""

    def __init__(self, message: str, verdict: Verdict | None = None) -> None:
        super().__init__(message)
        self.verdict = verdict


class Peers:
    """One worker's view of its group of ``num_workers``, over all attempts that the group makes.

    ``beat``: seconds between two signs of life; ``silence``: seconds without one after which a worker counts as lost.
    """

    def __init__(
        self,
        store: KeyValue,
        *,
        worker: int,
        num_workers: int,
        stop: Stop,
        beat: float = BEAT,
        silence: float = SILENCE,
    ) -> None:
        self._store, self._given_stop = store, stop
        self._worker = worker
        self._num_workers = num_workers
        self._stop = stop
        self._beat_seconds, self._silence = beat, silence
        self._neighbour = (worker + 1) % num_workers
        self._heard = ("", time.monotonic())
        self._looked = 0.0
        self._has_left = self._waiting = self._is_finishing = False
        self._attempt = 1  # of this group; what is told in one is not heard in the next

    def begin(self) -> None:
        """Gives signs of life from now on."""
        threading.Thread(target=self._beat, name="signs of life", daemon=True).start()

    def begin_again(self, seconds: float) -> bool:
        """Whether all workers begin another attempt; what was told before is forgotten then.

        All are told the same: yes when all have asked, no when the ``seconds`` of one are up or one has left.
        """
        end, decision = time.monotonic() + seconds, self._key("again")
        try:
            num_ready = self._store.add(self._key("ready"), 1)
            while not (told := self._store.get(decision)):
                is_late = time.monotonic() > end or self._stop.requested or self._store.check(["left"])
                if is_late or num_ready == self._num_workers:
                    answer = "yes" if num_ready == self._num_workers else "no"
                    told = self._store.compare_set(decision, "", answer)
                    break
                time.sleep(0.05)
                num_ready = self._store.add(self._key("ready"), 0)
        except OSError:
            return False
        self._attempt += 1
        self._waiting = self._is_finishing = False
        self._stop = self._given_stop
        return told == "yes"

    def tell_start(self, start: str) -> None:
        """Says how the attempt starts."""
        self._store.set(self._key("start"), start)

    def hear_start(self) -> str:
        """What worker 0 said so; it may have to wait for the store of the run first."""
        return self._hear("start")

    def tell_meeting_point(self, address: str) -> None:
        """Says where rank 0 listens for the other ranks of the attempt."""
        self._store.set(self._key("meeting point"), address)

    def hear_meeting_point(self) -> str:
        """What worker 0 said so."""
        return self._hear("meeting point")

    def _hear(self, name: str) -> str:
        while not self._has(name):
            self.look()
            self._stop.pause(0.05)
        with _host():
            return self._store.get(self._key(name))

    def tell(self, verdict: Verdict) -> Verdict:
        """Says how this worker ends; returns the first verdict that was said, which may be another worker's.

        While the group finishes, only worker 0 says so.
        """
        if self._is_finishing and self._worker:
            return verdict
        with contextlib.suppress(OSError):
            return _verdict(self._store.compare_set(self._key(self._verdict_name), "", json.dumps(asdict(verdict))))
        return verdict

    def tell_left(self, verdict: Verdict) -> None:
        """Says that a rank of this worker has left its steps: a fault only where ranks of another worker went on."""
        with contextlib.suppress(OSError):  # its host has gone, which the next call notices
            self._store.compare_set(self._key(LEFT), "", json.dumps(asdict(verdict)))

    def verdict(self, seconds: float, *, of_left: bool = False) -> Verdict | None:
        """The verdict that was said first, or None when none was within ``seconds``; ``of_left``: also by tell_left."""
        others = [LEFT] if of_left else []
        with contextlib.suppress(OSError):  # its host has gone
            return _verdict(said) if (said := self._await(seconds, self._verdict_name, *others)) else None
        return None

    def _await(self, seconds: float, *names: str) -> str | None:
        """The first value of these that there is."""
        end = time.monotonic() + seconds
        while not (values := [value for name in names if (value := self._store.get(self._key(name)))]):
            if self._stop.requested or time.monotonic() > end:
                return None
            time.sleep(0.05)
        return values[0]

    @property
    def _verdict_name(self) -> str:
        """The group that finishes has heard of the signal before, and hears of a failure to finish."""
        return "verdict on finishing" if self._is_finishing else "verdict"

    def _key(self, name: str) -> str:
        return f"{self._attempt}/{name}"

    def look(self) -> None:
        """About once a second: raises PeersLost when a worker has ended badly, or has gone silent.

        While the group finishes, only worker 0 counts: where it has gone, so has the store of the group.
        """
        since = time.monotonic() - self._looked
        if since < self._beat_seconds:
            return
        self._looked = time.monotonic()
        if since > self._silence / 2:  # this process stood still, and the others may have done so with it
            self._heard = (self._heard[0], self._looked)
        if self._has(self._verdict_name):
            with _host():
                verdict = _verdict(self._store.get(self._key(self._verdict_name)))
            raise PeersLost(f"worker {verdict.worker} has ended", verdict)
        if self._neighbour != self._worker and not self._is_finishing:
            self._listen()

    def _has(self, name: str) -> bool:
        with _host():
            return self._store.check([self._key(name)])

    def _listen(self) -> None:
        """Each watches one other, so that the work does not grow with the square of the group."""
        with _host():
            beat = self._store.get(f"beat/{self._neighbour}")
        if beat != self._heard[0]:
            self._heard = (beat, time.monotonic())
        elif time.monotonic() - self._heard[1] > self._silence:
            raise PeersLost(f"worker {self._neighbour} has given no sign of life for {self._silence:.0f} s")

    def _beat(self) -> None:
        number = 0
        try:
            while True:
                self._store.set(f"beat/{self._worker}", str(number))
                number += 1
                time.sleep(self._beat_seconds)
        except OSError:  # the store has gone, which every worker notices by itself
            return

    def tell_waiting(self, waiting: bool) -> bool:
        """Says whether every rank of this worker waits for others; returns whether so all workers have said."""
        with contextlib.suppress(OSError):  # its host has gone, which the next look notices
            if waiting != self._waiting:
                self._store.set(self._key(f"waiting/{self._worker}"), str(waiting))
                self._waiting = waiting
            keys = [self._key(f"waiting/{worker}") for worker in range(self._num_workers)]
            return waiting and all(self._store.get(key) == str(True) for key in keys)
        return False

    def inputs_brought(self) -> None:
        """Returns when every worker has its inputs: its ranks would wait for the others no longer than torch does."""
        self._meet("inputs")

    def ranks_ended(self) -> None:
        """Returns when the ranks of every worker have ended well; the group then finishes within the grace period.

        From then on neither a signal nor the end of another worker but worker 0, which publishes, ends this one.
        """
        self._meet("ranks ended")
        self._is_finishing, self._stop = True, WithinGrace(self._stop)

    def tell_published(self) -> None:
        """Says, as worker 0, that what was trained is the result of the run."""
        with contextlib.suppress(OSError):
            self._store.set(self._key("published"), "")

    def hear_published(self) -> None:
        """Returns when worker 0 has said so. Raises PeersLost where it has ended otherwise."""
        while not self._has("published"):
            self.look()
            self._stop.pause(0.05)

    def _meet(self, place: str) -> None:
        with _host():
            if self._store.add(self._key(place), 1) == self._num_workers:
                self._store.set(self._key(f"all {place}"), "")
        while not self._has(f"all {place}"):
            self.look()
            self._stop.pause(0.05)

    def leave(self, seconds: float) -> None:
        """The host of the store leaves last, or after ``seconds``, so that all can read what was said."""
        try:
            if not self._has_left:
                self._has_left = True
                self._store.add("left", 1)
            if self._worker == 0:
                self._reaches("left", seconds)
        except (OSError, Stopped):
            return

    def _reaches(self, counter: str, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while self._store.add(counter, 0) < self._num_workers:
            if time.monotonic() > end:
                return False
            self._stop.pause(0.05)
        return True


@contextlib.contextmanager
def _host() -> Iterator[None]:
    """Raises PeersLost where the host of the store has gone, which it may do between any two calls."""
    try:
        yield
    except OSError as error:
        raise PeersLost("the store of the group has gone, and worker 0 with it") from error


def _verdict(said: str) -> Verdict:
    return Verdict(**json.loads(said))


@dataclass(frozen=True)
class Group:
    """All workers of a job, complete and alive. ``address``: under which the others reach this worker."""

    peers: Peers
    address: str


def meet(environment: Environment, stop: Stop) -> Group:
    """Waits for the group; raises NotFormed when the time for that is up, Stopped on a signal."""
    print(f"worker {environment.worker} meets the others at {environment.endpoint}")
    joining = _Joining(environment, stop)
    host, port = _split(environment.endpoint)
    own = GroupStore(environment.num_workers) if environment.worker == 0 else None
    is_served = own is None or environment.num_workers == 1
    store: KeyValue | None = own
    pod, agreed = uuid.uuid4().hex, Membership()
    while True:
        try:
            if own is not None and not is_served:
                Host(own, environment.group_key, port)
                is_served = True
            address = own_address(environment.endpoint) if environment.num_workers > 1 else "127.0.0.1"
            store = store or RemoteStore(host, port, environment.group_key)
            agreed = store.join(environment.worker, pod, agreed)
            why = f"another pod is worker {environment.worker}" if agreed == TAKEN else store.get(WHO_IS_MISSING)
        except OSError as error:  # a name not yet known, a store not yet there
            store, agreed = own, Membership()
            joining.again(f"{type(error).__name__}: {error}")
            continue
        if agreed == FORMED:
            peers = Peers(store, worker=environment.worker, num_workers=environment.num_workers, stop=stop)
            peers.begin()
            return Group(peers, address)
        joining.soon(why)


class _Joining:
    """The time in which the group has to form, whatever has to be tried again meanwhile."""

    def __init__(self, environment: Environment, stop: Stop) -> None:
        self._environment = environment
        self._stop = stop
        self._seconds = float(environment.rendezvous.get("join_timeout", environment.timings.join))
        self._until = time.monotonic() + self._seconds
        self._told = time.monotonic()

    def again(self, why: str) -> None:
        """Pauses before the next try; raises NotFormed when the time is up."""
        self._wait(why, self._environment.timings.retry)

    def soon(self, why: str) -> None:
        """The same before the next question to the store."""
        self._wait(why, self._environment.timings.look)

    def _wait(self, why: str, seconds: float) -> None:
        if self._environment.is_superseded:
            raise NotFormed(
                f"the run was submitted again while worker {self._environment.worker} waited for the others: it starts "
                "again with the new record"
            )
        if time.monotonic() > self._until:
            raise NotFormed(
                f"the {self._environment.num_workers} workers did not come together at {self._environment.endpoint} "
                f"within {self._seconds:.0f} s ({why}); see whether every pod was started and can reach the first"
            )
        if time.monotonic() - self._told > self._environment.timings.tell:
            self._told = time.monotonic()
            reporting.say(WaitsForPeers(endpoint=self._environment.endpoint, why=why))
        self._stop.pause(seconds)


def _split(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.rpartition(":")
    return host.strip("[]"), int(port)


def own_address(endpoint: str) -> str:
    """The address under which the other workers reach this one: that of the way to the endpoint; OSError if none."""
    host, port = _split(endpoint)
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as way:
        way.connect(address)  # a datagram socket sends nothing by this
        found: str = way.getsockname()[0]
    return found


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """A free port of this machine. It is bound and not listening: none but who asks for its number is given it."""
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    with socket.socket(family) as held:
        if family == socket.AF_INET6:
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("", 0))
        yield held.getsockname()[1]
