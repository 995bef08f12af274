"""The lead: one worker leads a group, and the others reach it at its address.

The lead of a group of a fixed size is worker 0, whose name is in the environment of every pod. In an elastic group any
worker may be lost, so the lead is the worker that wrote the newest of the numbered records in the store; each record is
put if absent. A lead that has enough workers, and at least half of its last group, puts its record again every second.
A worker calls the newest lead. If that neither answers nor puts its record, the worker takes the next number, after a
pause that is longer for a higher index and for a worker that was in no group. So mostly the lowest remaining worker
leads, and a worker that alone cannot reach the others takes nothing from them: it waits. A lead that alone cannot reach
the others is replaced.

A lead that was stopped or cut off, and goes on, finds a newer record within a second or before it begins a round. Then
it answers no report any more, and joins as any other. Records keep no worker from training; the lease of an attempt
does that (``attempt_records.py``).
"""

import contextlib
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from train_func.errors import StorageFailed
from train_func.storage import Store, put_new
from train_func.wire.codec import Record
from train_func.wire.layout import newest_number
from train_func.wire.records import RunRecord
from train_func.wire.result import complete
from train_func.worker.environment import Environment
from train_func.worker.supervisor.connection import Connection, Host
from train_func.worker.supervisor.coordinator import (
    GATHER_SECONDS,
    REGATHER_SECONDS,
    Coordinator,
    GroupState,
    Order,
    Report,
)
from train_func.worker.supervisor.usage import Usage

LEAD_BEAT_SECONDS = 1.0  # between two records of a lead
LEAD_GONE_SECONDS = 1.0  # without a new record of a lead whose process has gone, as its machine says, or of any lead
LEAD_SILENCE_SECONDS = 3 * LEAD_BEAT_SECONDS  # the same of a lead that does not answer and may live
SECONDS_PER_WORKER = 0.5  # more for each lower worker
NEWCOMER_SECONDS = 6.0  # more for a worker that was in no group, while those that are left may find a lead

Ask = Callable[[Report], Order]


class Finished(Exception):
    """The group has ended, and the result of the run is in the store."""


class Replaced(Exception):
    """Another worker leads the group now."""


@dataclass(frozen=True)
class Way:
    """The way of a worker to the coordinator of its group."""

    ask: Ask
    """Brings a report to the coordinator and returns its order; raises OSError when it has gone."""
    address: str
    """The address of this worker for the others."""
    lead: int
    """The worker with the coordinator."""
    usages: Callable[[], Mapping[int, Usage]] = dict
    """Returns the usage of each worker in the lead; nothing in other workers."""


class Lead(Protocol):
    """Finds the lead of the group for one worker."""

    where: str
    """The place of the lead, in words."""

    def find(self, *, is_left: bool) -> Way:
        """Returns the way to the lead, which may be this worker itself.

        ``is_left``: this worker is left of a group that has lost its lead.

        Raises:
            OSError: there is none yet.
            Finished: there will be none.
        """

    def check(self) -> None:
        """Raises Replaced if this worker is no longer the lead."""

    def others_train(self) -> bool:
        """Returns whether the group goes on without this worker, which belongs to none."""


class FixedLead:
    """Finds worker 0, which leads as long as the group lasts."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self.where = environment.endpoint

    def find(self, *, is_left: bool) -> Way:
        """Returns the way to worker 0; worker 0 makes the coordinator. Raises OSError while there is none."""
        environment = self._environment
        address = own_address(environment.endpoint) if environment.num_workers > 1 else "127.0.0.1"
        host, port = _split(environment.endpoint)
        if environment.worker:
            return Way(Connection(host, port, environment.group_key).report, address, lead=0)
        coordinator = Coordinator(GroupState(environment.num_workers, environment.num_workers))
        if environment.num_workers > 1:
            Host(coordinator, environment.group_key, port)
        return Way(coordinator.report, address, lead=0, usages=coordinator.usages)

    def check(self) -> None:
        """Does nothing, because worker 0 leads as long as it lives."""

    def others_train(self) -> bool:
        """Returns False, because a group of a fixed size needs every worker."""
        return False


@dataclass(frozen=True, kw_only=True)
class LeadRecord(Record):
    """The record of a lead, with its address."""

    worker: int
    pod: str
    address: str
    beat: int = 0
    """Counts up while the lead lives and has enough workers."""


class ElectedLead:
    """Finds the worker that wrote the newest record."""

    def __init__(self, environment: Environment, store: Store, record: RunRecord) -> None:
        self._environment, self._store, self._record = environment, store, record
        self._folder = record.keys.leads(record.submission)
        self._seen: bytes | None = None  # of the newest record
        self._since = 0.0  # when that was seen first
        self._own_number = 0
        self._coordinator: Coordinator | None = None
        self.where = "the lead"

    def find(self, *, is_left: bool) -> Way:
        """Returns the way to the newest lead that answers, or makes this worker the lead.

        Raises:
            OSError: there is no lead yet, and this worker has to wait longer before it leads; or the lead lives, and
                this worker cannot reach it.
            Finished: nothing is left to lead.
            StorageFailed: the store is away.
        """
        environment = self._environment
        try:
            number, data = self._newest_record()
        except StorageFailed:
            self._seen = None  # a lead is not silent while the store is away
            raise
        now = time.monotonic()
        if data != self._seen:
            self._seen, self._since = data, now
        error, patience = OSError("no worker leads the group yet"), LEAD_GONE_SECONDS
        if number:
            lead = LeadRecord.from_json(data, self._key(number))
            host, port = _split(lead.address)
            try:
                ask = Connection(host, port, environment.group_key).report
                way = Way(ask, own_address(lead.address), lead.worker)
            except OSError as failure:
                patience = LEAD_GONE_SECONDS if isinstance(failure, ConnectionRefusedError) else LEAD_SILENCE_SECONDS
                error = OSError(
                    f"worker {lead.worker} leads the group, and {lead.address} cannot be reached: {failure}"
                )
            else:
                self._seen = None  # from now on its silence counts
                return way
        is_first = not number and environment.worker == 0
        patience += SECONDS_PER_WORKER * environment.worker
        if number and not is_left:
            patience += NEWCOMER_SECONDS
        if not is_first and now - self._since < patience:
            raise error
        if complete(self._store, self._record):
            raise Finished
        try:
            address = own_address(environment.endpoint)
        except OSError:  # worker 0 has no address as long as it has no pod
            address = socket.gethostbyname(socket.gethostname())
        with reserved_port() as port:
            record = LeadRecord(worker=environment.worker, pod=environment.pod, address=f"{address}:{port}")
            if not put_new(self._store, self._key(number + 1), record.to_json()):
                raise OSError("another worker leads the group")
            gather = REGATHER_SECONDS if is_left else GATHER_SECONDS
            state = GroupState(environment.num_workers, environment.min_workers, environment.worker, gather, is_left)
            coordinator = Coordinator(state)
            Host(coordinator, environment.group_key, port)
        self._own_number, self._coordinator = number + 1, coordinator
        threading.Thread(target=self._beat, args=(number + 1, record, coordinator), daemon=True).start()
        return Way(coordinator.report, address, environment.worker, usages=coordinator.usages)

    def check(self) -> None:
        """Raises Replaced if a record is newer than this worker's, StorageFailed if the store does not answer."""
        if (newest := self._newest()) > self._own_number:
            if self._coordinator:
                self._coordinator.retire()
            raise Replaced(f"{self._store.address}/{self._key(newest)} names another lead of the group")

    def others_train(self) -> bool:
        """Returns whether another worker leads enough workers, or takes the place of a lead that has gone."""
        pauses = LEAD_SILENCE_SECONDS + NEWCOMER_SECONDS + SECONDS_PER_WORKER * self._environment.num_workers
        with contextlib.suppress(StorageFailed):
            before = self._newest_record()
            for _ in range(math.ceil(pauses / LEAD_BEAT_SECONDS)):
                time.sleep(LEAD_BEAT_SECONDS)
                if self._newest_record() != before:
                    return True
        return False

    def _beat(self, number: int, record: LeadRecord, coordinator: Coordinator) -> None:
        """Puts the record of this lead again and again, until another worker leads."""
        due = time.monotonic() + LEAD_BEAT_SECONDS
        while not coordinator.is_retired:
            time.sleep(max(0.0, due - time.monotonic()))
            due = time.monotonic() + LEAD_BEAT_SECONDS
            with contextlib.suppress(Exception):  # as of a store that is away
                self.check()
                if coordinator.has_enough():
                    record = replace(record, beat=record.beat + 1)
                    self._store.put(self._key(number), record.to_json())

    def _newest_record(self) -> tuple[int, bytes]:
        number = self._newest()
        return number, self._store.get(self._key(number)).data if number else b""

    def _newest(self) -> int:
        return newest_number(self._store.names(self._folder))

    def _key(self, number: int) -> str:
        return f"{self._folder}/{number}.json"


def _split(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.rpartition(":")
    return host.strip("[]"), int(port)


def own_address(endpoint: str) -> str:
    """Returns the address of this machine on its way to the endpoint; raises OSError if there is none."""
    host, port = _split(endpoint)
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as way:
        way.connect(address)  # a datagram socket sends nothing by this
        return str(way.getsockname()[0])


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """Yields a free port of this machine, bound and not listening, so that no process gets it by chance."""
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    with socket.socket(family) as port:
        if family == socket.AF_INET6:
            port.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        port.bind(("", 0))
        yield port.getsockname()[1]
