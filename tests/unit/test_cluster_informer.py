"""What the API has of one kind is kept up to date through everything that a server may do, on recorded answers."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.twin_jobs import until
from train_func.client.cluster.access import Access
from train_func.client.cluster.informer import Informer, Watched
from train_func.client.cluster.timings import Timings
from train_func.client.kinds.pytorchjob import PYTORCHJOB

PATH = "/api/v1/namespaces/here/pods"


def pod(name, version, phase="Running"):
    metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}
    return {"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "status": {"phase": phase}}


def listing(version, *pods):
    return {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": str(version)}, "items": list(pods)}


def news(kind, item):
    return {"type": kind, "object": item}


def bookmark(version):
    return news("BOOKMARK", {"kind": "Pod", "apiVersion": "v1", "metadata": {"resourceVersion": str(version)}})


TOO_OLD = {
    "kind": "Status",
    "status": "Failure",
    "message": "too old resource version",
    "reason": "Expired",
    "code": 410,
}


class Server(ThreadingHTTPServer):
    """Answers lists and watches, one after the other, as it was told to; then it keeps the watch open."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.lists, self.watches, self.asked = [], [], []
        self.closing = threading.Event()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        watched = query.get("resourceVersion") if query.get("watch") == "true" else None
        self.server.asked.append(watched)
        answers = self.server.watches if watched else self.server.lists
        answer = answers.pop(0) if answers else []
        if isinstance(answer, int):
            self.whole(answer, {"kind": "Status", "code": answer, "message": "no"})
        elif watched is None:
            self.whole(200, answer)
        else:
            self.stream(answer)

    def whole(self, status, plain):
        data = json.dumps(plain).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def stream(self, answer):
        """Lines; None: the connection breaks, "end": the server closes it in good order."""
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for line in answer:
            if line is None:
                self.close_connection = True
                return
            if line == "end":
                self.wfile.write(b"0\r\n\r\n")
                return
            data = json.dumps(line, separators=(",", ":")).encode() + b"\n" if isinstance(line, dict) else line
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.server.closing.wait(60)
        self.close_connection = True


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.closing.set()
        server.shutdown()


@pytest.fixture
def watched(server):
    from kubernetes import client

    configuration = client.Configuration()
    configuration.host = f"http://127.0.0.1:{server.server_address[1]}"
    configuration.retries = False
    timings = Timings(watch_pause=0.01, longest_watch_pause=0.05, outage=0.2)
    access = Access("here", "a server of the test", PYTORCHJOB, timings, client.ApiClient(configuration))
    kind = Watched("pods", PATH, (), b"job-a", lambda item: item["status"]["phase"])
    changes = []
    made = Informer(access, kind, lambda: changes.append(1))
    made.changes = changes
    yield made
    made.stop()
    server.closing.set()
    if made.is_alive():
        made.join(10)
        assert not made.is_alive()


def names(found):
    return {uid.removeprefix("uid-job-a-"): phase for uid, phase in found.items()}


def shows(watched, **phases):
    until(lambda: names(watched.items) == phases, f"{phases}")


def test_a_list_and_what_changes_afterwards_are_kept(server, watched):
    server.lists = [listing(10, pod("job-a-0", 8, "Pending"))]
    server.watches = [
        [
            news("MODIFIED", pod("job-a-0", 11)),
            news("ADDED", pod("job-a-1", 12)),
            news("ADDED", pod("other", 13)),
            news("DELETED", pod("job-a-1", 14, "Failed")),
        ]
    ]
    watched.start()
    until(lambda: names(watched.gone) == {"1": "Failed"}, "the deleted pod is remembered as it was last")
    shows(watched, **{"0": "Running"})
    assert watched.synced
    assert server.asked == [None, "10"]


def test_what_does_not_change_anything_is_no_news(server, watched):
    server.lists = [listing(10, pod("job-a-0", 8))]
    server.watches = [
        [news("MODIFIED", pod("job-a-0", 11)), bookmark(12), news("MODIFIED", pod("job-a-0", 13, "Failed"))]
    ]
    watched.start()
    shows(watched, **{"0": "Failed"})
    assert len(watched.changes) == 2


@pytest.mark.parametrize("drop", [None, "end", b'{"type": "MODIF'], ids=["broken", "closed", "broken in a line"])
def test_a_watch_goes_on_where_it_was(server, watched, drop):
    server.lists = [listing(10, pod("job-a-0", 8, "Pending"))]
    ended = [drop] if not isinstance(drop, bytes) else [drop, None]
    server.watches = [[news("MODIFIED", pod("job-a-0", 11)), bookmark(20), *ended], [news("ADDED", pod("job-a-1", 21))]]
    watched.start()
    shows(watched, **{"0": "Running", "1": "Running"})
    assert server.asked == [None, "10", "20"]


@pytest.mark.parametrize("gone", [[news("ERROR", TOO_OLD)], 410], ids=["in the stream", "at once"])
def test_when_the_server_has_forgotten_the_place_everything_is_listed_anew(server, watched, gone):
    server.lists = [
        listing(10, pod("job-a-0", 8), pod("job-a-1", 9)),
        listing(50, pod("job-a-0", 40, "Failed"), pod("job-a-2", 41)),
    ]
    server.watches = [gone, [news("MODIFIED", pod("job-a-2", 51, "Succeeded"))]]
    watched.start()
    shows(watched, **{"0": "Failed", "2": "Succeeded"})
    assert names(watched.gone) == {"1": "Running"}
    assert server.asked == [None, "10", None, "50"]


def test_a_server_that_is_not_well_is_asked_again(server, watched):
    server.lists = [500, 503, listing(10, pod("job-a-0", 8))]
    server.watches = [500, 403, [news("MODIFIED", pod("job-a-0", 11, "Failed"))]]
    server.watches[1:2] = [["end"], 403]  # it served the watch before, so what it refuses now is no matter of rights
    watched.start()
    shows(watched, **{"0": "Failed"})
    assert watched.failure is None
    assert watched.error is None


@pytest.mark.parametrize("status", [401, 403, 404])
def test_what_the_server_refuses_from_the_start_is_given_up(server, watched, status):
    server.lists = [status]
    watched.start()
    watched.join(10)
    assert not watched.is_alive()
    assert watched.failure.status == status
    assert not watched.synced


@pytest.mark.parametrize("status", [401, 403])
def test_what_the_server_refuses_later_is_told_listed_now_and_then_and_watched_again(server, watched, status):
    server.lists = [listing(10, pod("job-a-0", 8, "Pending")), *[listing(20, pod("job-a-0", 18))] * 200]
    server.watches = [["end"], *[status] * 60]
    watched.start()
    assert until(lambda: watched.outage, "it is told").status == status
    shows(watched, **{"0": "Running"})  # by the list
    assert watched.synced
    until(lambda: watched.outage is None, "it is watched again")
    assert watched.failure is None


def test_a_stopped_watch_ends_at_once(server, watched):
    server.lists = [listing(10, pod("job-a-0", 8))]
    server.watches = [[bookmark(11)]]
    watched.start()
    shows(watched, **{"0": "Running"})
    watched.stop()
    watched.join(5)
    assert not watched.is_alive()
