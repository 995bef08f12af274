"""A service on this machine to which alerts are posted: it notes them, and answers, refuses or never answers."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.api_servers import running

SECRET = "T0CANARY5e1f0c9b"  # of its address


class Service(ThreadingHTTPServer):
    """``answer``: the status code of every answer to a post; None: it never answers."""

    daemon_threads = True

    def __init__(self, answer: int | None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer, self.is_over = answer, threading.Event()
        self.posts: list[dict[str, Any]] = []
        self.address = f"http://127.0.0.1:{self.server_address[1]}/services/{SECRET}"


class _Handler(BaseHTTPRequestHandler):
    server: Service

    def do_POST(self) -> None:
        assert self.path.endswith(SECRET)
        self.server.posts.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        if self.server.answer is None:
            self.server.is_over.wait()
            return
        self.send_response(self.server.answer)
        if 300 <= self.server.answer < 400:
            self.send_header("Location", self.path)
        self.end_headers()

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Prints nothing."""


@contextmanager
def service(answer: int | None = 200) -> Iterator[Service]:
    """Serves, and is gone afterwards."""
    with running(Service(answer)) as server:
        try:
            yield server
        finally:
            server.is_over.set()
