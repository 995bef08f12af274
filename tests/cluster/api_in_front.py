"""The real API server seen through one that tells another version, or answers one request with an error."""

import base64
import contextlib
import itertools
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.api_servers import running


def of_version(version: str, kubeconfig: Path, folder: Path) -> contextlib.AbstractContextManager[Path]:
    """A kubeconfig whose server says that it is of another version."""
    return _in_front(kubeconfig, folder, version=version)


def failing_at(number: int, kubeconfig: Path, folder: Path) -> contextlib.AbstractContextManager[Path]:
    """A kubeconfig whose server answers the request of this number, if it is a GET, with an error."""
    return _in_front(kubeconfig, folder, requests=itertools.count(1), failing=number)


@contextlib.contextmanager
def _in_front(kubeconfig: Path, folder: Path, **what: Any) -> Iterator[Path]:
    config = json.loads(kubeconfig.read_text())
    cluster = config["clusters"][0]["cluster"]
    trust = _trust(cluster, config["users"][0]["user"], folder)
    handler = type("Handler", (_Handler,), {"server_url": cluster["server"], "context": trust, **what})
    with running(ThreadingHTTPServer(("127.0.0.1", 0), handler)) as server:
        config["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{server.server_port}"}
        path = folder / "in-front.kubeconfig"
        path.write_text(json.dumps(config))
        yield path


def _trust(cluster: dict[str, Any], user: dict[str, Any], folder: Path) -> ssl.SSLContext:
    """Of the server, and of this user by certificate, where it has one."""
    trust = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    if "client-certificate-data" in user:
        path = folder / "client.pem"
        path.touch(mode=0o600)
        path.write_bytes(b"".join(base64.b64decode(user[f"client-{part}-data"]) for part in ("key", "certificate")))
        trust.load_cert_chain(path)
    return trust


class _Handler(BaseHTTPRequestHandler):
    server_url: str
    context: ssl.SSLContext
    version: str | None = None
    requests: Iterator[int] = itertools.count(1)
    failing = 0
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PATCH(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def log_message(self, *arguments: object) -> None:
        pass

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else None
        if self.failing and next(self.requests) == self.failing and self.command == "GET":
            self._say(500, b"something went wrong\n", "text/plain; charset=utf-8")
            return
        request = urllib.request.Request(self.server_url + self.path, data=body, method=self.command)
        for name in ("Authorization", "Content-Type", "Accept"):
            if value := self.headers.get(name):
                request.add_header(name, value)
        try:
            with urllib.request.urlopen(request, context=self.context, timeout=10) as answer:
                status, found = answer.status, answer.read()
        except urllib.error.HTTPError as refused:
            status, found = refused.code, refused.read()
        if self.version and self.path.partition("?")[0] == "/version":
            found = json.dumps({**json.loads(found), "gitVersion": self.version}).encode()
        self._say(status, found, "application/json")

    def _say(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
