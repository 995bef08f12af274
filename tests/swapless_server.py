"""A small S3 server for tests that keeps objects in memory and cannot replace one by its version.

It stands in for servers that ignore the conditions of a put, and for those that answer 501; no signature is verified.
"""

import contextlib
import hashlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.api_servers import running

REFUSAL = b"<Error><Code>NotImplemented</Code><Message>A header implies what is not implemented</Message></Error>"


class Held(NamedTuple):
    data: bytes
    metadata: dict[str, str]

    @property
    def tag(self) -> str:
        return f'"{hashlib.md5(self.data).hexdigest()}"'


class SwaplessServer(ThreadingHTTPServer):
    """Its objects by path; ``refused``: headers to which it answers 501; ``heeds``: whether it heeds If-None-Match."""

    daemon_threads = True

    def __init__(self, *refused: str, heeds: bool = True) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.refused, self.heeds = refused, heeds
        self.num_refused = 0
        self.held: dict[str, Held] = {}

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs in its environment to use the server."""
        endpoint = f"http://127.0.0.1:{self.server_address[1]}"
        keys = {"AWS_ACCESS_KEY_ID": "a-key", "AWS_SECRET_ACCESS_KEY": "a-secret", "AWS_REGION": "us-east-1"}
        return {"AWS_ENDPOINT_URL_S3": endpoint, **keys}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: SwaplessServer

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if any(name in self.headers for name in self.server.refused):
            self.server.num_refused += 1
            self._answer(501, REFUSAL)
        elif self.server.heeds and "If-None-Match" in self.headers and self.path in self.server.held:
            self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
        else:
            metadata = {name: of for name, of in self.headers.items() if name.lower().startswith("x-amz-meta-")}
            self.server.held[self.path] = held = Held(data, metadata)
            self._answer(200, b"", {"ETag": held.tag})

    def do_GET(self) -> None:
        path, asked = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
        if "list-type" in asked:
            self._answer(200, self._listed(path, asked.get("prefix", [""])[0]))
        elif held := self.server.held.get(self.path):
            self._answer(200, held.data, {"ETag": held.tag, **held.metadata})
        else:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")

    def do_DELETE(self) -> None:
        self.server.held.pop(self.path, None)
        self._answer(204, b"")

    def _listed(self, bucket: str, prefix: str) -> bytes:
        found = {unquote(path.removeprefix(f"{bucket}/")): held for path, held in self.server.held.items()}
        lines = [
            f"<Contents><Key>{escape(key)}</Key><Size>{len(held.data)}</Size><ETag>{held.tag}</ETag></Contents>"
            for key, held in found.items()
            if key.startswith(prefix)
        ]
        return f"<ListBucketResult>{''.join(lines)}</ListBucketResult>".encode()

    def _answer(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response_only(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: object) -> None:
        pass


def swapless_server(*refused: str, heeds: bool = True) -> contextlib.AbstractContextManager[SwaplessServer]:
    """A running server; ``refused``: headers to which it answers 501; ``heeds``: whether it heeds If-None-Match."""
    return running(SwaplessServer(*refused, heeds=heeds))
