"""What follows a job waits as long as a busy API server asks for, and stops at once when it is stopped."""

import threading
from dataclasses import replace

import pytest

from tests.api_servers import Answer, ApiServer, busy, running, write_kubeconfig
from tests.twin_jobs import until
from train_func.client.cluster import logs
from train_func.client.cluster.informer import Informer, Watched
from train_func.client.cluster.kubeconfig import connect
from train_func.client.cluster.observer import Observer
from train_func.client.cluster.tail import Tail
from train_func.client.cluster.timings import Timings
from train_func.client.status import LogCut, Pod
from train_func.errors import InvalidInput

LONG = f"{Timings().busy / 2:.0f}"
NOTHING = {"metadata": {"resourceVersion": "1"}, "items": []}


@pytest.fixture
def server():
    with running(server := ApiServer()):
        yield server


@pytest.fixture
def access(server, tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "kubeconfig", {"server": server.url})))
    return connect(timings=Timings(first_listing=2.0, idle=2.0))


@pytest.fixture
def observed():
    """Makes observers that only a test asks."""
    made = []
    yield lambda access: made.append(Observer(access, "job-a")) or made[-1]
    for one in made:
        one.stop()


def follow(access, observed, stop=None):
    return list(logs.Following(access, lambda: observed, None, print).lines(stop or threading.Event()))


def test_a_log_is_followed_when_the_server_has_had_the_time_that_it_asked_for(server, access, observed):
    refused = set()

    def answer(asked):
        if asked.path not in refused:
            refused.add(asked.path)
            return busy(Retry_After="4")
        return Answer(body=NOTHING)

    server.answer = answer
    assert follow(access, observed(access)) == []  # there is no such job any more


def test_a_server_that_stays_busy_is_the_cause_that_is_told(server, access, observed):
    access = connect(timings=replace(access.timings, busy=1.5))
    server.answer = lambda asked: busy(Retry_After="1")
    with pytest.raises(InvalidInput, match="429"):
        follow(access, observed(access))


def test_a_following_that_is_stopped_does_not_wait_for_a_busy_server(server, access, observed):
    server.answer = lambda asked: busy(Retry_After=LONG)
    stop = threading.Event()
    following = threading.Thread(target=follow, args=(access, observed(access), stop), daemon=True)
    following.start()
    until(lambda: server.asked, "the server is asked")
    stop.set()
    following.join(float(LONG) / 3)
    assert not following.is_alive()


def stopped(thread, server):
    """Stops what a busy server has asked to wait; whether it has ended long before that time."""
    server.answer = lambda asked: busy(Retry_After=LONG)
    thread.start()
    until(lambda: server.asked, "the server is asked")
    thread.stop()
    thread.join(float(LONG) / 3)
    return not thread.is_alive() and len(server.asked) == 1


def test_a_watch_that_is_stopped_does_not_wait_for_a_busy_server(server, access):
    watched = Watched("pods", "/api/v1/pods", (), b"none", lambda item: None)
    assert stopped(Informer(access, watched, lambda: None), server)


def test_the_reader_of_a_log_that_is_stopped_does_not_wait_for_a_busy_server(server, access):
    pod = Pod("job-a-worker-0", "uid-0", 0, "Running", None, "", "", None, None, deleted=False)

    class Knows:
        def pod(self, uid):
            return pod

    put = []
    assert stopped(Tail(access, Knows, pod, put.append), server)
    assert put == [LogCut(0, "uid-0"), pod]
