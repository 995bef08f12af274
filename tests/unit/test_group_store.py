"""The store of worker 0, and how a group forms through it."""

import contextlib
import socket

import pytest

from train_func.worker.pod import group_store
from train_func.worker.pod.group_store import FORMED, MISSING, TAKEN, GroupStore, Host, RemoteStore


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(group_store.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def remote():
    """Makes connections to a store that is served."""
    hosts = []

    def make(store, job="a-run"):
        hosts.append(Host(store, "a-run", 0))
        return RemoteStore("127.0.0.1", hosts[-1].port, job)

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


def test_what_is_no_worker_harms_no_store_and_no_worker(remote):
    store = GroupStore(2)
    far = remote(store)
    for said in (b"GET / HTTP/1.1\r\n\r\n", b"x" * (2 * group_store.LONGEST), b""):
        with socket.create_connection(far._connection.getpeername()[:2]) as stranger, contextlib.suppress(OSError):
            stranger.sendall(said)
            stranger.shutdown(socket.SHUT_WR)
            assert stranger.recv(1) == b""
    far.set("a", "b")
    with socket.create_server(("127.0.0.1", 0)) as other:
        lost = RemoteStore(*other.getsockname(), "a-run")
        answering, _ = other.accept()
        answering.sendall(b"HTTP/1.1 400 Bad Request\r\n")
        with answering, pytest.raises(OSError):
            lost.get("a")


def test_a_worker_of_another_job_or_one_that_asks_for_anything_else_is_turned_away(remote):
    with pytest.raises(OSError):
        remote(GroupStore(1), job="another").get("a")
    with pytest.raises(OSError):
        remote(GroupStore(1))._call("_membership", 0, "")


def test_a_message_of_any_length_arrives(remote):
    store = GroupStore(2)
    other, long = remote(store), "é" * 3_000_000
    other.set("key", long)
    assert (store.get("key"), other.get("key")) == (long, long)
    assert other.compare_set("key", long, "short") == "short"
