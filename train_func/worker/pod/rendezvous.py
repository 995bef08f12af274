"""Brings the workers together: worker 0 hosts the store, the others find it, and all answer before any rank starts."""

import socket
import time
from typing import cast

from torch.distributed.elastic.rendezvous import (
    RendezvousError,
    RendezvousInfo,
    RendezvousParameters,
    dynamic_rendezvous,
)
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, create_handler

from train_func.events import WaitsForPeers
from train_func.worker.pod import reporting
from train_func.worker.pod.environment import Environment
from train_func.worker.pod.peers import KeyValue, NotFormed, Peers
from train_func.worker.pod.stop import Stop


class Rendezvous:
    """A rendezvous handler for the elastic agent whose group is complete and alive, with worker i as its i-th member.

    torch numbers the members by address and process id; here a worker keeps its ranks over all attempts.
    """

    use_agent_store = True

    def __init__(self, environment: Environment, stop: Stop) -> None:
        self._environment = environment
        self._stop = stop
        self._handler: DynamicRendezvousHandler | None = None  # its heartbeats last as long as it does

    def get_run_id(self) -> str:
        return self._environment.rendezvous_id

    def num_nodes_waiting(self) -> int:
        """None is ever let in: the size is fixed, and a lost worker ends the attempt."""
        return 0

    def next_rendezvous(self) -> RendezvousInfo:
        """Waits for the group; raises NotFormed when the time for that is up, Stopped on a signal."""
        joining = _Joining(self._environment, self._stop)
        print(f"worker {self._environment.worker} meets the others at {self._environment.endpoint}")
        while True:
            try:
                self._handler = _connect(self._environment)
                found = self._handler.next_rendezvous()
                store, environment = cast(KeyValue, found.store), self._environment
                self.peers = Peers(
                    store, worker=environment.worker, num_workers=environment.num_workers, stop=self._stop
                )
                if self.peers.check_in(self._environment.timings.check_in):
                    meeting_point = found.bootstrap_store_info
                    assert meeting_point is not None
                    return RendezvousInfo(found.store, self._environment.worker, found.world_size, meeting_point)
                why = "one of them vanished while the group formed"
            except (OSError, RuntimeError, RendezvousError) as error:  # a name not yet known, a store not yet there
                why = f"{type(error).__name__}: {error}"
            self._handler = None
            joining.again(why)


class _Joining:
    """The time in which the group has to form, whatever has to be tried again meanwhile."""

    def __init__(self, environment: Environment, stop: Stop) -> None:
        self._environment = environment
        self._stop = stop
        self._seconds = float(environment.rendezvous.get("join_timeout", environment.timings.join))
        self._until = time.monotonic() + self._seconds
        self._told = time.monotonic()

    def again(self, why: str) -> None:
        if time.monotonic() > self._until:
            raise NotFormed(
                f"the {self._environment.num_workers} workers did not come together at {self._environment.endpoint} "
                f"within {self._seconds:.0f} s ({why}); see whether every pod was started and can reach the first"
            )
        if time.monotonic() - self._told > self._environment.timings.tell:
            self._told = time.monotonic()
            reporting.say(WaitsForPeers(endpoint=self._environment.endpoint, why=why))
        self._stop.pause(self._environment.timings.retry)


def _connect(environment: Environment) -> DynamicRendezvousHandler:
    parameters = RendezvousParameters(
        backend="c10d",
        endpoint=environment.endpoint,
        run_id=environment.rendezvous_id,
        min_nodes=environment.num_workers,
        max_nodes=environment.num_workers,
        local_addr=own_address(environment.endpoint),
        # is_host: not guessed from names, which takes long and fails for aliases.
        **{
            "read_timeout": environment.timings.rendezvous_answer,
            **environment.rendezvous,
            "is_host": environment.worker == 0,
        },
    )
    backend, store = create_backend(parameters)
    return _prompt(create_handler(store, backend, parameters), environment.timings.look)


def _prompt(handler: DynamicRendezvousHandler, look: float) -> DynamicRendezvousHandler:
    """Makes it notice at once that the group is complete; by itself it looks only once a second, which is not settable.

    https://github.com/pytorch/pytorch/blob/v2.13.0/torch/distributed/elastic/rendezvous/dynamic_rendezvous.py#L685
    """
    dynamic_rendezvous._delay = lambda seconds: time.sleep(look)  # type: ignore[attr-defined]
    handler._state_holder._cache_duration = 0  # type: ignore[attr-defined]
    return handler


def own_address(endpoint: str) -> str:
    """The address under which the other workers reach this one: that of the way to the endpoint; OSError if none."""
    host, _, port = endpoint.rpartition(":")
    family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as way:
        way.connect(address)  # a datagram socket sends nothing by this
        found: str = way.getsockname()[0]
    return found
