"""A followed job is followed to its end, however long its reader takes before the first line or between two."""

import threading
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.api_servers import Answer, ApiServer, running, write_kubeconfig
from tests.twin_jobs import until
from train_func import Cluster
from train_func.client.cluster.timings import Timings
from train_func.client.status import LogCut, LogLine
from train_func.errors import InvalidInput

NAME, TIME = "run-1", "2026-11-21T14:00:00Z"
LINES = [f"2026-11-21T14:00:0{second}.5Z line {second}\n" for second in range(3)]


class Api:
    """Has one job with one worker, which has written its first line; its watches tell nothing and end at once."""

    def __init__(self):
        self.ended, self.gone, self.log_is_refused = threading.Event(), False, False
        self.deletion = {}

    def __call__(self, asked):
        path, query = urlsplit(asked.path).path, parse_qs(urlsplit(asked.path).query)
        if path.endswith("/log") and self.log_is_refused:
            return Answer(403, {"kind": "Status", "message": "cannot get resource"})
        if path.endswith("/log"):
            if "sinceTime" in query:
                self.ended.wait(60)
            return Answer(body="".join(LINES if self.ended.is_set() else LINES[:1]).encode())
        if path.endswith(f"/pods/{NAME}-worker-0"):
            return Answer(404) if self.gone else Answer(body=self.pod())
        items = {"pytorchjobs": [self.job()], "pods": [] if self.gone else [self.pod()]}
        listed = [] if "watch" in query else items.get(path.rpartition("/")[2], [])
        return Answer(body={"metadata": {"resourceVersion": "1"}, "items": listed})

    def job(self):
        kind = "Succeeded" if self.ended.is_set() else "Running"
        condition = {"type": kind, "status": "True", "lastTransitionTime": TIME}
        return {"metadata": {"name": NAME, "uid": "uid-job"}, "status": {"conditions": [condition]}}

    def pod(self):
        done = {"terminated": {"exitCode": 0, "startedAt": TIME, "finishedAt": TIME}}
        state = done if self.ended.is_set() else {"running": {"startedAt": TIME}}
        return {
            "metadata": {"name": f"{NAME}-worker-0", "uid": "uid-0", "creationTimestamp": TIME, **self.deletion},
            "status": {"phase": "Running", "containerStatuses": [{"name": "pytorch", "state": state}]},
        }


@pytest.fixture
def api(tmp_path, monkeypatch):
    with running(server := ApiServer()):
        server.answer = api = Api()
        monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "kubeconfig", {"server": server.url})))
        yield api
        api.ended.set()


@pytest.fixture
def job():
    return Cluster(namespace="here", timings=Timings(idle=1.0, first_listing=5.0)).job(NAME)


@pytest.fixture
def lines(job):
    stop = threading.Event()
    yield job.logs(follow=True, note=print, stop=stop)
    stop.set()


def nothing_observes():
    return not [thread for thread in threading.enumerate() if thread.name == f"observer of {NAME}"]


def rest_of(lines):
    """What comes until the following ends, which it does within seconds."""
    read: list[LogLine | LogCut] = []
    reader = threading.Thread(target=lambda: read.extend(lines), daemon=True)
    reader.start()
    reader.join(10)
    assert not reader.is_alive()
    return read


def test_a_reader_that_pauses_for_longer_than_a_job_is_observed_still_comes_to_its_end(api, lines):
    assert next(lines).text == "line 0"
    until(nothing_observes, "the job is not observed any more")
    api.ended.set()
    assert [line.text for line in rest_of(lines)] == ["line 1", "line 2"]


def test_of_a_pod_that_went_while_the_reader_paused_the_log_is_cut(api, lines):
    assert next(lines).text == "line 0"
    until(nothing_observes, "the job is not observed any more")
    api.gone = True
    api.ended.set()
    assert rest_of(lines)[-1] == LogCut(0, "uid-0")


def test_a_following_that_is_read_late_begins_with_the_first_line(api, job, lines):
    job.wait_for_change(0)
    until(nothing_observes, "the job is not observed any more")
    api.ended.set()
    assert [line.text for line in rest_of(lines)] == ["line 0", "line 1", "line 2"]


def test_what_was_seen_of_a_job_is_kept_while_nothing_observes_it(api, job):
    job.wait_for_change(0.5)
    until(nothing_observes, "the job is not observed any more")
    api.gone = True
    job.wait_for_change(0.5)
    assert [pod.deleted for pod in job.pods()] == [True]


def test_a_deleted_pod_that_is_gone_waits_for_its_node_no_longer(api, job):
    api.deletion = {"deletionTimestamp": TIME, "deletionGracePeriodSeconds": 30}
    job.wait_for_change(0.5)
    assert [pod.deletion.grace_seconds for pod in job.pods()] == [30]
    until(nothing_observes, "the job is not observed any more")
    api.gone = True
    job.wait_for_change(0.5)
    assert [(pod.deleted, pod.deletion) for pod in job.pods()] == [(True, None)]


def test_a_following_begins_with_the_pods_that_were_seen_and_are_gone(api, job):
    job.wait_for_change(0.5)
    until(nothing_observes, "the job is not observed any more")
    api.gone = True
    api.ended.set()
    lines = job.logs(follow=True, note=print, stop=threading.Event())
    assert [(pod.uid, pod.deleted) for pod in job.pods()] == [("uid-0", True)]
    assert rest_of(lines) == [LogCut(0, "uid-0")]


def test_of_a_pod_that_went_before_the_first_line_was_read_the_log_is_cut(api, job, lines):
    assert [pod.uid for pod in job.pods()] == ["uid-0"]
    until(nothing_observes, "the job is not observed any more")
    api.gone = True
    api.ended.set()
    assert rest_of(lines) == [LogCut(0, "uid-0")]


def test_a_right_that_was_missing_when_a_log_was_followed_before_is_asked_for_anew(api):
    job = Cluster(namespace="here", timings=Timings(idle=1.5, outage=0.2)).job(NAME)
    api.log_is_refused = True
    with pytest.raises(InvalidInput, match="pods/log"):
        next(job.logs(follow=True, note=print, stop=threading.Event()))
    until(nothing_observes, "the job is not observed any more")
    api.log_is_refused = False
    job.wait_for_change(0)
    assert job.outage() is None
    stop = threading.Event()
    assert next(job.logs(follow=True, note=print, stop=stop)).text == "line 0"
    stop.set()
