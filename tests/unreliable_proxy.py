"""An HTTP proxy for tests that loses, delays, repeats and cuts requests and answers, each as a seed has drawn it."""

import contextlib
import http.client
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FAULTS = (
    "request lost",
    "request late",  # the client sees its connection break, and asks again before or after
    "request delayed",
    "request doubled",  # as by a proxy that asks again itself: the client has the second answer
    "answer lost",
    "answer cut",
)
SHARE = 0.15  # of requests
LONGEST = 0.25  # seconds of a delay
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class UnreliableProxy(ThreadingHTTPServer):
    """Forwards each request to ``upstream``, a port of this machine, with the fault that was drawn for its place."""

    daemon_threads = True

    def __init__(self, upstream: int, place_of: Callable[[str], str]) -> None:
        """``place_of``: of a path; the faults of each place are a sequence of their own."""
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = upstream
        self.num_faults: Counter[str] = Counter()
        self.accepted: list[tuple[str, bytes]] = []
        """Path and bytes of each PUT that the server has answered with 200."""
        self._place_of = place_of
        self._draws: dict[str, random.Random] = {}
        self._changed = threading.Condition()
        self._num_under_way = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def draw(self, path: str) -> tuple[str, float]:
        """A fault, or "", and the seconds that it delays."""
        place = self._place_of(path)
        with self._changed:
            chance = self._draws.setdefault(place, random.Random(place))
            fault = chance.choice(FAULTS) if chance.random() < SHARE else ""
            self.num_faults[fault] += 1
            return fault, chance.uniform(0, LONGEST)

    @contextlib.contextmanager
    def under_way(self) -> Iterator[None]:
        with self._changed:
            self._num_under_way += 1
        try:
            yield
        finally:
            with self._changed:
                self._num_under_way -= 1
                self._changed.notify_all()

    def wait_until_idle(self) -> None:
        """Returns when no request is on its way any more."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._num_under_way == 0, timeout=30)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is no matter."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: UnreliableProxy

    def _pass_on(self) -> None:
        with self.server.under_way():
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            fault, seconds = self.server.draw(self.path)
            if fault in ("request lost", "request late"):
                self._hang_up()
            if fault == "request lost":
                return
            if fault in ("request late", "request delayed"):
                time.sleep(seconds)
            if fault == "request doubled":
                self._ask(body)
            answer, data = self._ask(body)
            if fault == "answer lost":
                self._hang_up()
            elif fault != "request late":
                self._tell(answer, data, half=fault == "answer cut")

    do_GET = do_PUT = do_POST = do_DELETE = _pass_on  # noqa: N815

    def _ask(self, body: bytes) -> tuple[http.client.HTTPResponse, bytes]:
        there = http.client.HTTPConnection("127.0.0.1", self.server.upstream, timeout=30)
        with contextlib.closing(there):
            there.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() != "expect":  # the body comes at once
                    there.putheader(name, value)
            there.endheaders(body)
            answer = there.getresponse()
            data = answer.read()
        if self.command == "PUT" and answer.status == 200:
            self.server.accepted.append((self.path, body))
        return answer, data

    def _tell(self, answer: http.client.HTTPResponse, data: bytes, *, half: bool) -> None:
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "content-length", "transfer-encoding"):
                self.send_header(name, value)
        if answer.status != 204:
            self.send_header("Content-Length", str(len(data)))
        if data or not half:
            self.end_headers()
            self.wfile.write(data[: len(data) // 2] if half else data)
        if half:
            self._hang_up()

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *arguments: object) -> None:
        pass


@contextlib.contextmanager
def unreliable_proxy(upstream: int, place_of: Callable[[str], str]) -> Iterator[UnreliableProxy]:
    """A running proxy before the port ``upstream`` of this machine."""
    proxy = UnreliableProxy(upstream, place_of)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        proxy.server_close()
