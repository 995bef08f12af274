"""The logs of pods are read through whatever else is in the pods, and through an API that does not answer."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from train_func.client.cluster import logs, reading
from train_func.client.cluster.access import Access
from train_func.client.observed import LogLine, Pod

NOW = datetime.now(UTC)
ENDED = Pod("job-a-worker-0", "uid-0", 0, "Succeeded", 0, "Completed", "", NOW, NOW, deleted=False)
RUNS = Pod("job-a-worker-0", "uid-0", 0, "Running", None, "", "", NOW, None, deleted=False)


class Server(ThreadingHTTPServer):
    """An API with one pod of two containers."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.hangs = False
        self.closing = threading.Event()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        address = urlsplit(self.path)
        query = parse_qs(address.query)
        if self.server.hangs:
            self.server.closing.wait(60)
            self.close_connection = True
        elif not address.path.endswith("/log"):
            self.answer(200, b'{"metadata": {"uid": "uid-0"}}')
        elif query.get("container") != ["pytorch"]:
            self.answer(400, b'{"message": "a container name must be specified for pod job-a-worker-0"}')
        else:
            self.answer(200, b"2026-11-21T14:49:01.5Z hello\n" if "timestamps" in query else b"hello\n")

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
    return Access(namespace="here", where="a server of the test", client=api, core=client.CoreV1Api(api), custom=None)


def test_of_a_pod_with_other_containers_the_log_of_the_worker_is_read(access):
    assert list(logs._there_now(access, [ENDED])) == [LogLine(0, "uid-0", "hello")]
    assert logs.last_lines(access, [RUNS]) == {"uid-0": "hello"}


def test_of_a_pod_with_other_containers_the_state_of_the_worker_is_read():
    def status(name, **state):
        return {"name": name, "restartCount": 0, "state": state}

    ended = status("pytorch", terminated={"exitCode": 65, "reason": "Error", "message": "the data"})
    found = {
        "metadata": {"name": "job-a-worker-0", "uid": "uid-0"},
        "status": {"phase": "Running", "containerStatuses": [status("istio-proxy", running={}), ended]},
    }
    pod = reading.pod(found)
    assert (pod.exit_code, pod.reason, pod.message) == (65, "Error", "the data")
