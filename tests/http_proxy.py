"""A real HTTP proxy for tests: tunnels by CONNECT, to one server whatever is asked for, and notes what was."""

import base64
import contextlib
import select
import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CHUNK = 1 << 16


class HttpProxy(ThreadingHTTPServer):
    """Leads every tunnel to ``port`` of this machine: the target of each stands in ``tunnels``."""

    daemon_threads = True

    def __init__(self, port: int, user: str | None = None) -> None:
        """``user``: the name:password that it requires."""
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = port
        self.user = user
        self.tunnels: list[str] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is no matter."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HttpProxy

    def do_CONNECT(self) -> None:
        self.close_connection = True
        self.server.tunnels.append(self.path)
        wanted = self.server.user and f"Basic {base64.b64encode(self.server.user.encode()).decode()}"
        if wanted and self.headers.get("Proxy-Authorization") != wanted:
            self.send_error(407)
            return
        with socket.create_connection(("127.0.0.1", self.server.target)) as there:
            self.send_response(200)
            self.end_headers()
            self._tunnel(there)

    def _tunnel(self, there: socket.socket) -> None:
        other = {self.connection: there, there: self.connection}
        with contextlib.suppress(OSError):
            while True:
                for ready in select.select(list(other), [], [])[0]:
                    if not (data := ready.recv(CHUNK)):
                        return
                    other[ready].sendall(data)

    def log_message(self, *arguments: object) -> None:
        pass
