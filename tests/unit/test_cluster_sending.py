"""A busy API server is asked again when it says so, for a stated time, in few words; nothing is done twice."""

import json
import re
import threading
import time

import pytest

from tests.api_servers import Answer, ApiServer, busy, running, write_kubeconfig
from tests.messages import unnamed
from train_func.client.cluster import objects, preflight
from train_func.client.cluster.access import Stream, run_concurrently
from train_func.client.cluster.kubeconfig import connect
from train_func.client.cluster.timings import Timings
from train_func.client.kinds.pod import RUN_LABEL
from train_func.errors import InvalidInput

NOW = "0"
JOB = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "PyTorchJob",
    "metadata": {"name": "run-1", "labels": {RUN_LABEL: "run-1"}},
    "spec": {"pytorchReplicaSpecs": {"Worker": {"template": {"spec": {"containers": [{"image": "i:1"}]}}}}},
}
CONFIG_MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "run-1"}}


@pytest.fixture
def server():
    with running(server := ApiServer()):
        yield server


@pytest.fixture
def access(server, tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "kubeconfig", {"server": server.url})))
    return connect()


def after(*refusals, then=None):
    """Answers with these first, each once, and then well."""
    left = list(refusals)
    return lambda asked: left.pop(0) if left else then or Answer()


def send(access, method):
    arguments = ("/api/v1/things", *([] if method == "GET" else [{}]))
    return getattr(access, method.lower())(*arguments)


@pytest.mark.parametrize("method", ["GET", "POST", "PATCH", "DELETE"])
def test_what_a_busy_server_did_not_take_is_sent_again(server, access, method):
    server.answer = after(busy(Retry_After=NOW), busy(Retry_After=NOW), then=Answer(body={"taken": method}))
    assert send(access, method) == {"taken": method}
    assert [asked.method for asked in server.asked] == [method] * 3
    assert len({asked.body for asked in server.asked}) == 1


@pytest.mark.parametrize("form", ["seconds", "none"])
def test_it_is_not_asked_before_the_time_that_it_named(server, access, form):
    server.answer = after({"seconds": busy(Retry_After="1"), "none": busy()}[form])
    assert send(access, "GET") == {}
    first, second = server.asked
    assert second.time - first.time >= 1


def test_one_line_says_for_how_long_whatever_number_of_requests_waits(server, access, capsys):
    refusals = [busy(Retry_After=NOW) for _ in range(14)]
    server.answer = after(*refusals)
    threads = [threading.Thread(target=send, args=(access, "GET")) for _ in range(7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.asked) == len(refusals) + 7
    (line,) = capsys.readouterr().out.splitlines()
    assert access.where in line
    assert {"429", f"{Timings().busy:.0f}"} <= set(re.findall(r"\d+", line))


def test_a_wait_longer_than_the_limit_is_refused_at_once(server, access):
    server.answer = lambda asked: busy(Retry_After="3600")
    with pytest.raises(InvalidInput, match="429.*3600 s") as caught, access.asking("get", "things"):
        send(access, "GET")
    assert caught.value.cause == "cluster"
    assert len(server.asked) == 1


def test_a_server_that_stays_busy_is_given_up(server, access):
    access = connect(timings=Timings(busy=2.0))
    server.answer = lambda asked: busy(Retry_After=NOW)
    with pytest.raises(InvalidInput, match="429"), access.asking("get", "things"):
        send(access, "GET")
    assert len(server.asked) > 1


@pytest.mark.parametrize(("method", "times"), [("GET", 2), ("DELETE", 2), ("POST", 1), ("PATCH", 1)])
def test_what_may_have_been_done_is_only_repeated_when_that_is_safe(server, access, method, times):
    server.answer = after(busy(503, Retry_After=NOW))
    if times == 1:
        with pytest.raises(Exception, match="503"):
            send(access, method)
    else:
        assert send(access, method) == {}
    assert len(server.asked) == times


@pytest.mark.parametrize("status", [500, 503])
def test_a_failure_without_a_time_to_come_back_is_told_at_once(server, access, status):
    server.answer = after(busy(status))
    with pytest.raises(Exception, match=str(status)):
        send(access, "GET")
    assert len(server.asked) == 1


def test_the_limit_of_time_for_silence_is_not_used_up_by_a_busy_server(server, access):
    server.answer = after(busy(Retry_After="3"))
    inner = lambda: run_concurrently([lambda: send(access, "GET")], 2.5)  # noqa: E731
    assert run_concurrently([inner], 2.5) == [[{}]]


def test_silence_still_ends_the_wait(access):
    end = threading.Event()
    begun = time.monotonic()
    (outcome,) = run_concurrently([end.wait], 0.2)
    end.set()
    assert isinstance(outcome, TimeoutError)
    assert time.monotonic() - begun >= 0.2


@pytest.mark.parametrize("status", [200, 403, 502])
@pytest.mark.parametrize("page", ["<html>Zugriff verweigert</html>", "<html>accès refusé</html>"])
@pytest.mark.parametrize("streamed", [True, False])
def test_a_page_of_something_else_that_listens_there_is_recognised(server, access, status, page, streamed):
    server.answer = lambda asked: Answer(status, page.encode("latin-1"), {"Content-Type": "text/html"})
    with pytest.raises(InvalidInput, match="no Kubernetes API"), access.asking("get", "things"):
        if streamed:
            Stream(access, "/api/v1/things", (), silence=9.0)
        else:
            send(access, "GET")


class Cluster:
    """Holds what is created, and refuses each request that it has not refused before."""

    def __init__(self):
        self.refused, self.held = set(), {}

    def __call__(self, asked):
        collection, _, name = asked.path.rpartition("/")
        if (again := (asked.method, asked.path)) not in self.refused:
            self.refused.add(again)
            return busy(Retry_After=NOW)
        if asked.method == "POST":
            made = json.loads(asked.body)
            made["metadata"] |= {"uid": f"uid-{len(self.held)}", "resourceVersion": "1"}
            there = self.held.setdefault(f"{asked.path}/{made['metadata']['name']}", made)
            return Answer(201 if there is made else 409, made)
        if asked.path not in self.held:
            return Answer(404, {"kind": "Status", "message": f'{collection} "{name}" not found', "code": 404})
        if asked.method == "PATCH":
            self.held[asked.path]["metadata"].update(json.loads(asked.body)["metadata"])
        return Answer(body=self.held[asked.path])


def test_a_job_is_created_once_though_every_first_request_is_refused(server, access):
    server.answer = cluster = Cluster()
    objects.create(access, JOB, CONFIG_MAP)
    job = cluster.held["/apis/kubeflow.org/v1/namespaces/here/pytorchjobs/run-1"]
    config_map = cluster.held["/api/v1/namespaces/here/configmaps/run-1"]
    assert len(cluster.held) == 2
    assert [owner["uid"] for owner in config_map["metadata"]["ownerReferences"]] == [job["metadata"]["uid"]]


def test_the_preflights_first_question_waits_for_a_busy_server(server, access, monkeypatch):
    monkeypatch.setattr(preflight, "CHECKS", ())
    rules = [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]
    server.answer = after(
        busy(Retry_After=f"{preflight.REACH_SECONDS + 1:.0f}"), then=Answer(201, {"status": {"resourceRules": rules}})
    )
    assert preflight.check(access, JOB) == []
    assert len(server.asked) == 2


def test_the_files_of_a_job_of_another_kind_are_neither_replaced_nor_removed(server, access):
    owner = {"kind": "TrainJob", "name": "run-1", "uid": "uid-7"}
    metadata = {"name": "run-1", "labels": {RUN_LABEL: "run-1"}, "ownerReferences": [owner]}
    server.answer = cluster = Cluster()
    path = "/api/v1/namespaces/here/configmaps/run-1"
    cluster.held[path] = {"metadata": metadata}
    with pytest.raises(InvalidInput, match="run-1") as refused:
        objects.create(access, JOB, CONFIG_MAP)
    assert unnamed(refused.value, "on=Cluster(kind='TrainJob')") == []
    assert not objects.remove(access, "run-1")
    assert [asked.method for asked in server.asked if asked.path == path and asked.method != "GET"] == []
