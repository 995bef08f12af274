"""A look at a job of a cluster: few requests, every log line once, the logs that matter, and an outage told as such."""

import json
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.api_servers import Answer, ApiServer, running, write_kubeconfig
from train_func import Cluster, InvalidInput
from train_func.client.cluster.cluster_job import LOG_BYTES, MOST_FAILURES, MOST_FOLLOWED
from train_func.client.watch import until_now

TIME = "2026-11-21T14:00:00Z"
JOB = {"metadata": {"name": "job-a", "uid": "uid", "creationTimestamp": TIME}, "spec": {}}


def pod(worker=0, *, uid="", phase="Running", code=None):
    ended = {"terminated": {"exitCode": code, "startedAt": TIME, "finishedAt": TIME, "reason": "Error"}}
    state = {"running": {"startedAt": TIME}} if code is None else ended
    labels = {"training.kubeflow.org/replica-index": str(worker)}
    name = f"job-a-worker-{worker}"
    return {
        "metadata": {"name": name, "uid": uid or f"uid-{worker}", "creationTimestamp": TIME, "labels": labels},
        "status": {"phase": phase, "containerStatuses": [{"name": "pytorch", "state": state}]},
    }


class Server(ApiServer):
    """Has one job, these pods, and of each pod a log of stamped lines; ``refused`` are statuses by the path's end."""

    def __init__(self):
        super().__init__()
        self.pods, self.logs, self.refused = [pod()], {}, {}
        self.answer = self._answer

    def _answer(self, asked):
        url = urlsplit(asked.path)
        query, last = parse_qs(url.query), url.path.rpartition("/")[2]
        if status := self.refused.get(last):
            words = 'pods is forbidden: cannot get resource "pods/log"' if status == 403 else "no"
            return Answer(status, {"kind": "Status", "message": words, "code": status})
        if last == "log":
            since = query.get("sinceTime", [""])[0][:19]
            lines = [line for line in self.logs.get(url.path.split("/")[-2], []) if line[:19] >= since]
            text = "".join(f"{line}\n" for line in lines).encode()
            return Answer(body=text[: int(query["limitBytes"][0])])
        items = self.pods if last == "pods" else []
        return Answer(body=JOB if last == "job-a" else {"metadata": {}, "items": items})

    def write(self, *lines, worker=0):
        """Each at a second, with its text."""
        stamped = [f"2026-11-21T14:00:{second:02}.{part}Z {text}" for second, part, text in lines]
        self.logs.setdefault(f"job-a-worker-{worker}", []).extend(stamped)

    def requests(self):
        seen, self.asked = self.asked, []
        return [urlsplit(asked.path).path.rpartition("/")[2] for asked in seen]


@pytest.fixture
def server(tmp_path, monkeypatch):
    with running(server := Server()):
        monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "kubeconfig", {"server": server.url})))
        yield server


@pytest.fixture
def job(server):
    return Cluster().job("job-a")


def texts(snapshot):
    return [line.text for line in snapshot.lines]


def test_a_look_is_one_request_each_for_job_pods_events_and_a_log(server, job):
    job.look()
    assert sorted(server.requests()) == ["events", "job-a", "log", "pods"]


def test_each_line_comes_once_whatever_its_time(server, job):
    server.write((1, 5, "a"), (1, 5, "a"), (1, 7, "b"))
    first = job.look()
    server.write((1, 5, "a"), (1, 6, "late"), (3, 1, "c"))
    second = job.look(first)
    assert (texts(first), texts(second), texts(job.look(second))) == (["a", "a", "b"], ["a", "late", "c"], [])


def test_a_long_log_is_read_whole_by_several_looks_of_limited_size(server, job):
    server.write(*((second, 1, f"{second} " + "x" * LOG_BYTES if second == 5 else str(second)) for second in range(9)))
    server.write((8, 2, "y" * (LOG_BYTES // 2)), (8, 3, "z" * (LOG_BYTES // 2)), (9, 1, "end"))
    snapshot, lines = None, []
    for _ in range(9):
        snapshot = job.look(snapshot)
        lines += texts(snapshot)
        if not snapshot.has_more:
            break
    assert [line[:1] for line in lines if line[:1] not in "5"][-4:] == ["8", "y", "z", "e"]


def test_a_pod_that_ended_is_read_once_and_one_that_is_gone_is_left_to_the_store(server, job):
    server.pods = [pod(phase="Failed", code=1)]
    server.write((1, 1, "a"))
    first = job.look()
    server.requests()
    second = job.look(first)
    assert (texts(first), "log" in server.requests()) == (["a"], False)
    server.pods = []
    third = job.look(second)
    assert [(pod.uid, pod.deleted) for pod in third.pods] == [("uid-0", True)]
    assert third.lost == {"uid-0"}


def test_an_ended_pod_whose_node_does_not_answer_is_left_to_the_store_after_a_few_looks(server, job):
    server.pods, server.refused = [pod(phase="Failed", code=1)], {"log": 500}
    snapshot = None
    for _ in range(MOST_FAILURES):
        assert snapshot is None or not snapshot.lost
        snapshot = job.look(snapshot)
    assert snapshot.lost == {"uid-0"}


def test_of_a_large_job_the_logs_of_worker_0_and_of_those_that_fail_are_read_and_any_other_on_demand(server, job):
    server.pods = [pod(number) for number in range(MOST_FOLLOWED + 1)]
    server.pods[7] = pod(7, phase="Failed", code=1)
    for worker in (0, 5, 7):
        server.write((1, 1, str(worker)), worker=worker)
    snapshot = job.look()
    assert texts(snapshot) == ["0", "7"]
    assert "logs(worker=1)" in snapshot.note
    assert texts(job.look(worker=5)) == ["5"]


@pytest.mark.parametrize(
    ("path", "status", "cause"), [("pods", 503, "cluster"), ("job-a", 401, "permission"), ("log", 403, "permission")]
)
def test_an_outage_raises_at_the_first_look_and_is_told_with_what_was_seen_before_later(
    server, job, path, status, cause
):
    first = job.look()
    server.refused = {path: status}
    with pytest.raises(InvalidInput) as raised:
        job.look()
    later = job.look(first)
    assert (later.outage.cause, raised.value.cause) == (cause, cause)
    assert [pod.uid for pod in later.pods] == ["uid-0"]
    server.refused = {}
    assert job.look(later).outage is None


def test_what_was_written_so_far_comes_to_an_end(server, job):
    server.write((1, 1, "a"))
    snapshots = [snapshot for snapshot, _ in until_now(iter([(job.look(), "Running")]))]
    assert [json.dumps(texts(snapshot)) for snapshot in snapshots] == ['["a"]']
