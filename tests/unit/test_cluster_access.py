"""A request to the API that finds its connection closed is sent once more, without a warning."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from train_func.client.cluster.access import Access
from train_func.client.cluster.kubeconfig import connect


class Server(ThreadingHTTPServer):
    """Answers a request, and hangs up on the second one that comes over the same connection."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str] = []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def setup(self) -> None:
        super().setup()
        self.answered = False

    def do_GET(self) -> None:
        self.server.asked.append(self.command)
        if self.answered:
            self.close_connection = True
            return
        self.answered = True
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def access(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Access:
    cluster = {"server": f"http://127.0.0.1:{server.server_address[1]}"}
    config = {
        "clusters": [{"name": "here", "cluster": cluster}],
        "users": [{"name": "me", "user": {}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
        "current-context": "here",
    }
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(path))
    return connect()


def test_what_only_reads_is_asked_once_more_without_a_warning(server, access, caplog):
    assert access.get("/api") == {}
    assert access.get("/api") == {}
    assert server.asked == ["GET", "GET", "GET"]
    assert [record for record in caplog.records if record.name.startswith("urllib3")] == []


def test_what_creates_is_never_sent_twice(server, access):
    assert access.get("/api") == {}
    with pytest.raises(Exception, match="Connection aborted"):
        access.post("/api", {})
    assert server.asked == ["GET", "POST"]
