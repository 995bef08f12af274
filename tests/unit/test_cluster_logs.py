"""The logs of pods are read through whatever else is in the pods, and through an API that does not answer."""

import contextlib
import dataclasses
import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.twin_jobs import until
from train_func.client.cluster import logs, tail
from train_func.client.cluster.access import Access
from train_func.client.cluster.observer import Observer
from train_func.client.cluster.timings import Timings
from train_func.client.kinds.pytorchjob import PYTORCHJOB
from train_func.client.status import Condition, JobStatus, LogCut, LogLine, Pod
from train_func.errors import InvalidInput

NOW = datetime.now(UTC)
ENDED = Pod("job-a-worker-0", "uid-0", 0, "Succeeded", 0, "Completed", "", NOW, NOW, deleted=False)
RUNS = Pod("job-a-worker-0", "uid-0", 0, "Running", None, "", "", NOW, None, deleted=False)


class Server(ThreadingHTTPServer):
    """An API with one pod of two containers."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.hangs = self.expired = False
        self.num_refused = self.num_flows = 0
        self.closing = threading.Event()
        self.breaks = threading.Event()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        address = urlsplit(self.path)
        query = parse_qs(address.query)
        if self.server.hangs and address.path.endswith("/log"):
            self.server.closing.wait(60)
            self.close_connection = True
        elif address.path.endswith(("/pods", "/pytorchjobs", "/events")):
            self.listed(address.path.rpartition("/")[2], is_watch="watch" in query)
        elif self.server.expired:
            self.server.num_refused += 1
            self.answer(401, b'{"message": "Unauthorized"}')
        elif not address.path.endswith("/log"):
            self.answer(200, b'{"metadata": {"uid": "uid-0"}}')
        elif query.get("container") != ["pytorch"]:
            self.answer(400, b'{"message": "a container name must be specified for pod job-a-worker-0"}')
        elif query.get("follow") == ["true"]:
            self.flow()
        else:
            self.answer(200, b"2026-11-21T14:49:01.5Z hello\n" if "timestamps" in query else b"hello\n")

    def listed(self, resource, *, is_watch):
        if is_watch:
            self.send_response(200)
            self.end_headers()
            self.server.closing.wait(60)
            self.close_connection = True
            return
        metadata = {"name": RUNS.name, "uid": RUNS.uid, "creationTimestamp": "2026-11-21T14:49:00Z"}
        pod = {"metadata": metadata, "status": {"phase": "Running"}}
        listed = {"metadata": {"resourceVersion": "1"}, "items": [pod] if resource == "pods" else []}
        self.answer(200, json.dumps(listed).encode())

    def flow(self):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        number = 0
        with contextlib.suppress(OSError):
            self.server.num_flows += 1
            while not self.server.closing.wait(0.01) and not self.server.breaks.is_set():
                number += 1
                line = f"2026-11-21T14:49:{number // 100 % 60:02}.{number:09}Z {number}\n".encode()
                self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
        self.close_connection = True

    def answer(self, status, data):
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.closing.set()
        server.shutdown()


@pytest.fixture
def access(server) -> Access:
    from kubernetes import client

    configuration = client.Configuration()
    configuration.host = f"http://127.0.0.1:{server.server_address[1]}"
    configuration.retries = False
    api = client.ApiClient(configuration)
    timings = Timings(late_pods=0.2, late_logs=1.0)
    return Access("here", "a server of the test", PYTORCHJOB, timings, api)


def impatient(access):
    return dataclasses.replace(access, timings=dataclasses.replace(access.timings, whole_log=0.3))


def test_of_a_pod_with_other_containers_the_log_of_the_worker_is_read(access):
    assert list(logs.there_now(access, [ENDED])) == [LogLine(0, "uid-0", "hello")]
    assert logs.last_lines(access, [RUNS]) == {"uid-0": "hello"}


def test_of_a_pod_with_other_containers_the_state_of_the_worker_is_read():
    def status(name, **state):
        return {"name": name, "restartCount": 0, "state": state}

    ended = status("pytorch", terminated={"exitCode": 65, "reason": "Error", "message": "the data"})
    found = {
        "metadata": {"name": "job-a-worker-0", "uid": "uid-0"},
        "status": {"phase": "Running", "containerStatuses": [status("istio-proxy", running={}), ended]},
    }
    pod = PYTORCHJOB.pod(found)
    assert (pod.exit_code, pod.reason, pod.message) == (65, "Error", "the data")


class Observed:
    """A job as an observer knows it."""

    alive, failure, outage, error = True, None, None, None

    def __init__(self, pod, *conditions):
        self._pod = pod
        self._status = JobStatus(tuple(Condition(kind, "True", "", "") for kind in conditions))

    def __call__(self):
        return self

    def ask(self):
        pass

    def ready(self, seconds):
        return True

    def status(self):
        return self._status

    def pods(self):
        return [self._pod]

    def pod(self, uid):
        return self._pod

    def log_asked(self, refusal):
        pass


def readers():
    return [thread for thread in threading.enumerate() if thread.name == f"log of {RUNS.name}"]


def test_a_following_that_is_stopped_leaves_no_thread_and_no_connection_behind(access, server):
    stop, read = threading.Event(), []
    lines = logs.Following(access, Observed(RUNS, "Running"), None, print).lines(stop)
    following = threading.Thread(target=lambda: read.extend(lines), daemon=True)
    following.start()
    until(lambda: len(read) > 3 and readers(), "lines come")
    stop.set()
    following.join(10)
    assert not following.is_alive()
    until(lambda: not readers(), "its readers end")


@pytest.mark.parametrize("pod", [ENDED, RUNS], ids=["ended", "seems to run"])
def test_a_log_that_the_cluster_does_not_hand_out_is_cut_and_that_is_said(access, server, pod):
    access, server.hangs, said = impatient(access), True, []
    following = logs.Following(access, Observed(pod, "Succeeded"), None, said.append)
    assert list(following.lines(threading.Event())) == [LogCut(0, "uid-0")]
    assert said == [logs.CUT]


def test_a_log_that_is_there_as_a_whole_is_not_waited_for_as_long_as_a_silent_worker(access, server):
    server.hangs = True
    with pytest.raises(Exception, match="timed out"):
        tail.open_log(impatient(access), ENDED, follow=False)


def test_credentials_that_expire_while_a_log_is_read_end_nothing_and_it_goes_on_after_a_login(access, server):
    stop = threading.Event()
    lines = logs.Following(access, Observed(RUNS, "Running"), None, print).lines(stop)
    next(lines)
    server.expired = True
    server.breaks.set()
    until(lambda: server.num_refused > 1, "it is asked for again")
    server.expired = False
    server.breaks.clear()
    until(lambda: server.num_flows > 1, "it is read again")
    stop.set()
    assert not [line for line in lines if isinstance(line, LogCut)]


def test_a_log_that_may_no_longer_be_read_is_an_outage_until_it_is_read_again(access, server):
    access = dataclasses.replace(access, timings=dataclasses.replace(access.timings, outage=0.1))
    observer = Observer(access, "job-a")
    assert observer.ready(10)
    (pod,) = observer.pods()
    read = []
    reader = tail.Tail(access, lambda: observer, pod, read.append)
    reader.start()
    until(lambda: read, "the log is read")  # what is refused before its first line was never allowed
    assert observer.outage is None
    server.expired = True
    server.breaks.set()
    until(lambda: observer.outage, "the refusal is told")
    assert observer.outage.cause == "permission"
    server.expired = False
    server.breaks.clear()
    until(lambda: observer.outage is None, "the log is read again")
    reader.stop()
    observer.stop()


def test_credentials_that_were_never_accepted_are_named_at_once(access, server):
    server.expired = True
    with pytest.raises(InvalidInput, match="kubectl create token"):
        list(logs.Following(access, Observed(RUNS, "Running"), None, print).lines(threading.Event()))
