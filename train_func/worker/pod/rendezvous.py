"""Brings the workers together: worker 0 hosts the store, the others find it, and all answer before any rank starts."""

import contextlib
import socket
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from train_func.events import WaitsForPeers
from train_func.worker.pod import reporting
from train_func.worker.pod.environment import Environment
from train_func.worker.pod.group_store import (
    FORMED,
    TAKEN,
    WHO_IS_MISSING,
    GroupStore,
    Host,
    KeyValue,
    Membership,
    RemoteStore,
)
from train_func.worker.pod.peers import NotFormed, Peers
from train_func.worker.pod.stop import Stop


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
