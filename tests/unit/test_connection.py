"""The store of worker 0, and how a group forms through it."""

import contextlib
import hashlib
import json
import socket
import threading

import psutil
import pytest
from train_func.worker.supervisor.group_store import FORMED, MISSING, TAKEN, GroupStore, Host, RemoteStore

from train_func.worker.supervisor import group_store

KEY, OTHER_KEY = hashlib.sha256(b"of this job").digest(), hashlib.sha256(b"of another job").digest()


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(group_store.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def remote():
    """Makes connections to a store that is served."""
    hosts = []

    def make(store, key=KEY):
        hosts.append(Host(store, KEY, 0))
        return RemoteStore("127.0.0.1", hosts[-1].port, key)

    yield make
    for host in hosts:
        host.close()


def test_a_group_has_formed_when_all_have_agreed_to_the_same_members():
    store = GroupStore(2)
    assert store.join(0, "a", "") == MISSING
    assert store.get(group_store.WHO_IS_MISSING) == "not there yet: 1 worker (1)"
    both = store.join(1, "b", "")
    assert both not in (MISSING, FORMED, TAKEN)
    assert store.join(1, "b", both) == both  # worker 0 has not agreed yet
    assert store.join(0, "a", both) == FORMED
    assert store.join(1, "b", both) == FORMED
    assert store.join(1, "c", both) == TAKEN


def test_a_worker_that_went_silent_before_it_agreed_is_not_of_the_group(clock):
    store = GroupStore(2)
    store.join(1, "b", "")
    both = store.join(0, "a", "")
    clock[0] += group_store.PRESENT
    assert store.join(0, "a", both) == MISSING
    with_another = store.join(1, "c", "")
    assert with_another not in (both, TAKEN)
    assert store.join(1, "c", with_another) == with_another  # worker 0 has agreed to another one
    assert store.join(0, "a", with_another) == FORMED


def test_of_two_pods_that_say_they_are_the_same_worker_the_first_counts_while_it_asks(clock):
    store = GroupStore(2)
    assert store.join(1, "b", "") == MISSING
    assert store.join(1, "c", "") == TAKEN
    clock[0] += group_store.PRESENT
    assert store.join(1, "c", "") == MISSING
    assert store.join(1, "b", "") == TAKEN


def test_the_place_of_a_worker_whose_connection_has_ended_is_free_at_once(remote):
    store = GroupStore(2)
    gone = remote(store)
    assert gone.join(1, "b", "") == MISSING
    gone.close()
    again = remote(store)
    while (answer := again.join(1, "c", "")) == TAKEN:
        pass
    assert answer == MISSING


def test_a_remote_store_answers_as_the_store_itself(remote):
    store = GroupStore(3)
    far = remote(store)
    far.set("Größe", "食物\n")
    assert (store.get("Größe"), far.get("Größe"), far.get("none")) == ("食物\n", "食物\n", "")
    assert (far.add("n", 2), store.add("n", 5), far.add("n", 0)) == (2, 7, 7)
    assert (far.check(["n", "Größe"]), far.check(["n", "none"])) == (True, False)
    assert (far.compare_set("v", "", "mine"), store.compare_set("v", "", "other")) == ("mine", "mine")


HELLO = json.dumps({"train_func": "a-run"}).encode() + b"\n"
VERDICT = json.dumps(["compare_set", "1/verdict", "", "the function has failed"]).encode() + b"\n"


@pytest.mark.parametrize(
    "said",
    [b"", b"GET / HTTP/1.1\r\n\r\n", HELLO + VERDICT, b"\0" * 64 + VERDICT, b"x" * (2 * group_store.LONGEST)],
    ids=["nothing", "http", "two lines", "zeros", "too much"],
)
def test_a_stranger_is_heard_by_nobody(remote, said):
    store = GroupStore(2)
    far = remote(store)
    with socket.create_connection(far._connection.getpeername()[:2]) as stranger, contextlib.suppress(OSError):
        stranger.sendall(said)
        stranger.shutdown(socket.SHUT_WR)
        answer = b""
        while more := stranger.recv(1000):
            answer += more
        assert len(answer) <= group_store.PROOF  # its challenge, and no word more
    assert store.get("1/verdict") == ""
    far.set("a", "b")
    assert store.get("a") == "b"


def test_what_a_stranger_heard_of_a_worker_opens_nothing_later(remote):
    """The proof answers a challenge that is new for each connection."""
    store = GroupStore(2)
    far = remote(store)
    address = far._connection.getpeername()[:2]
    with socket.create_server(("127.0.0.1", 0)) as between:

        def passes_on():
            worker, _ = between.accept()
            with worker, socket.create_connection(address) as host:
                worker.sendall(host.recv(group_store.PROOF, socket.MSG_WAITALL))
                heard.append(worker.recv(2 * group_store.PROOF, socket.MSG_WAITALL))

        heard = []
        passing = threading.Thread(target=passes_on)
        passing.start()
        with pytest.raises(OSError):
            RemoteStore(*between.getsockname(), KEY)
        passing.join()
    with socket.create_connection(address) as stranger, contextlib.suppress(OSError):
        stranger.recv(group_store.PROOF, socket.MSG_WAITALL)
        stranger.sendall(heard[0] + VERDICT)
        assert stranger.recv(1) == b""
    assert store.get("1/verdict") == ""


def test_a_crowd_of_strangers_costs_no_thread_and_keeps_no_worker_out(remote):
    store = GroupStore(2)
    first = remote(store)
    address, process = first._connection.getpeername()[:2], psutil.Process()
    threads, descriptors = process.num_threads(), process.num_fds()
    with contextlib.ExitStack() as crowd:
        for _ in range(5 * group_store.MOST_STRANGERS):
            crowd.enter_context(socket.create_connection(address))
        second = RemoteStore(*address, KEY)
        second.set("a", "b")
        first.set("c", "d")
        assert (first.get("a"), second.get("c")) == ("b", "d")
        assert process.num_threads() <= threads  # those of earlier tests may end meanwhile
        ours = 5 * group_store.MOST_STRANGERS + 1  # the other ends of their connections
        assert process.num_fds() - descriptors - ours <= group_store.MOST_STRANGERS + 2
        second.close()


def test_a_stranger_that_says_nothing_is_left(remote, monkeypatch):
    monkeypatch.setattr(group_store, "ANSWER", 0.2)
    far = remote(GroupStore(2))
    with socket.create_connection(far._connection.getpeername()[:2]) as stranger:
        stranger.settimeout(60)
        assert len(stranger.recv(1000, socket.MSG_WAITALL)) == group_store.PROOF  # until its end


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
            RemoteStore(*other.getsockname(), KEY)
        answering.join()


def test_a_worker_of_another_job_or_one_that_asks_for_anything_else_is_turned_away(remote):
    with pytest.raises(OSError):
        remote(GroupStore(1), OTHER_KEY)
    with pytest.raises(OSError):
        remote(GroupStore(1))._call("_membership", 0, "")


def test_a_message_of_any_length_arrives(remote):
    store = GroupStore(2)
    other, long = remote(store), "é" * 3_000_000
    other.set("key", long)
    assert (store.get("key"), other.get("key")) == (long, long)
    assert other.compare_set("key", long, "short") == "short"
