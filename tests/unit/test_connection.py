"""How workers reach the coordinator: through breaks of the network, and past strangers that speak to its port."""

import contextlib
import hashlib
import socket
import threading
import time
from dataclasses import replace

import psutil
import pytest

from tests.tcp_proxy import tcp_proxy
from train_func.wire import exits
from train_func.wire.records import Verdict
from train_func.worker.supervisor import connection as connections
from train_func.worker.supervisor.connection import PROOF, Connection, Host
from train_func.worker.supervisor.coordinator import Coordinator, GroupPhase, GroupState, Report, Status

KEY, OTHER_KEY = hashlib.sha256(b"of this job").digest(), hashlib.sha256(b"of another job").digest()
LEAD, GUEST = Report(0, "pod 0"), Report(1, "pod 1")
FAULT = Verdict(exits.CODE, "code", "the function has failed", 1)
FAILED = replace(GUEST, round=1, status=Status.FAILED, verdict=FAULT)


class Group:
    """A group of two that has formed: worker 0 here, and worker 1 over a connection."""

    def __init__(self, coordinator=None, port=None):
        self._coordinator = coordinator or Coordinator(GroupState(2, 2))
        self.address = "127.0.0.1", Host(self._coordinator, KEY, 0).port
        self.guest = Connection("127.0.0.1", port(self.address) if port else self.address[1], KEY)
        while not self.guest.report(GUEST).round:
            self._coordinator.report(LEAD)

    def is_sound(self):
        """Whether both workers are told to go on, the other one without delay."""
        begun = time.monotonic()
        orders = self.guest.report(replace(GUEST, round=1)), self._coordinator.report(replace(LEAD, round=1))
        return {order.phase for order in orders} == {GroupPhase.CLAIM} and time.monotonic() - begun < 5


def sent(report):
    content = report.to_json()
    return len(content).to_bytes(connections.LENGTH) + content


STRANGE = {
    "nothing": b"",
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "no token": sent(FAILED),
    "a wrong token": bytes(2 * PROOF) + sent(FAILED),
    "half a token": bytes(PROOF + 1),
    "a huge length": b"\xff" * 1000,
    "a lot": b"x" * 50_000_000,
}


def sends(stranger, said):
    with contextlib.suppress(OSError):  # it may have been left meanwhile
        stranger.sendall(said)


@pytest.mark.parametrize("said", STRANGE.values(), ids=STRANGE)
@pytest.mark.parametrize("stays", [False, True], ids=["leaves", "stays"])
def test_a_stranger_neither_ends_nor_delays_a_job(said, stays):
    group = Group()
    with socket.create_connection(group.address) as stranger, contextlib.suppress(OSError):
        stranger.settimeout(10)
        sending = threading.Thread(target=sends, args=(stranger, said))
        sending.start()
        assert group.is_sound()
        if not stays:
            sending.join()
            stranger.shutdown(socket.SHUT_WR)
            answer = b""
            while more := stranger.recv(1000):
                answer += more
            assert len(answer) <= PROOF  # its challenge, and no word more
    assert group.is_sound()


def test_what_a_stranger_heard_of_a_worker_opens_nothing_later():
    """The proof answers a challenge that is new for each connection."""
    group, heard = Group(), []
    with socket.create_server(("127.0.0.1", 0)) as between:

        def passes_on():
            worker, _ = between.accept()
            with worker, socket.create_connection(group.address) as host:
                worker.sendall(host.recv(PROOF, socket.MSG_WAITALL))
                heard.append(worker.recv(2 * PROOF, socket.MSG_WAITALL))

        passing = threading.Thread(target=passes_on)
        passing.start()
        with pytest.raises(OSError):
            Connection(*between.getsockname(), KEY)
        passing.join()
    with socket.create_connection(group.address) as stranger, contextlib.suppress(OSError):
        stranger.recv(PROOF, socket.MSG_WAITALL)
        stranger.sendall(heard[0] + sent(FAILED))
        assert stranger.recv(1) == b""
    assert group.is_sound()


def test_a_crowd_of_strangers_costs_no_thread_and_keeps_no_worker_out():
    group, process = Group(), psutil.Process()
    threads = process.num_threads()
    with contextlib.ExitStack() as crowd:
        for _ in range(300):
            crowd.enter_context(socket.create_connection(group.address))
        late = Connection(*group.address, KEY)
        assert late.report(replace(GUEST, round=1)).phase is GroupPhase.CLAIM
        assert group.is_sound()
        assert process.num_threads() <= threads  # those of earlier tests may end meanwhile
        late.close()


def test_a_stranger_that_says_nothing_is_left(monkeypatch):
    monkeypatch.setattr(connections, "ANSWER_SECONDS", 0.2)
    group = Group()
    with socket.create_connection(group.address) as stranger:
        stranger.settimeout(60)
        assert len(stranger.recv(1000, socket.MSG_WAITALL)) == PROOF  # until its end


SAID = {"http": b"HTTP/1.1 400 Bad Request\r\n", "zeros": bytes(64), "noise": bytes(range(64)), "nothing": b""}


@pytest.mark.parametrize("said", SAID.values(), ids=SAID)
def test_a_worker_believes_no_other_host(said):
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answers():
            connection, _ = other.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(said)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1000):
                    pass

        answering = threading.Thread(target=answers)
        answering.start()
        with pytest.raises(OSError):
            Connection(*other.getsockname(), KEY)
        answering.join()


def test_a_worker_of_another_job_is_turned_away():
    group = Group()
    with pytest.raises(OSError):
        Connection(*group.address, OTHER_KEY)
    assert group.is_sound()


@pytest.fixture
def network():
    """Makes the port of a proxy before an address; the proxies that it has made."""
    with contextlib.ExitStack() as proxies:
        made = []

        def before(address):
            made.append(proxies.enter_context(tcp_proxy(address[1])))
            return made[-1].port

        before.made = made
        yield before


def test_a_connection_that_breaks_is_found_again_and_costs_nothing(network):
    group = Group(port=network)
    for _ in range(3):
        network.made[0].cut_all()
        assert group.is_sound()


def test_a_worker_learns_soon_that_the_host_has_gone(network):
    group = Group(port=network)
    network.made[0].close()
    begun = time.monotonic()
    with pytest.raises(OSError):
        group.guest.report(replace(GUEST, round=1))
    assert time.monotonic() - begun < 10


def test_a_host_that_is_slow_for_a_while_has_not_gone(monkeypatch):
    class Slow(Coordinator):
        until = 0.0

        def report(self, report):
            time.sleep(max(0.0, self.until - time.monotonic()))
            return super().report(report)

    coordinator = Slow(GroupState(2, 2))
    group = Group(coordinator)
    monkeypatch.setattr(connections, "ANSWER_SECONDS", 0.5)
    group.guest.close()
    coordinator.until = time.monotonic() + 0.8
    assert group.is_sound()
