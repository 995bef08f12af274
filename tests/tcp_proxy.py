"""A TCP proxy for tests that stands before a real server and spoils real bytes on the way."""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator

CHUNK = 1 << 16
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Cut(Exception):
    """Raised by a hook: both sides of the connection are reset, and the bytes at hand are lost."""


class TcpProxy:
    """Forwards every connection; the two hooks see each piece of bytes and return what goes on.

    ``on_reply`` also gets the beginning of the request that is being answered.
    """

    def __init__(self, upstream: int, host: str = "127.0.0.1") -> None:
        self.on_request: Callable[[bytes], bytes] = lambda data: data
        self.on_reply: Callable[[bytes, bytes], bytes] = lambda data, request: data
        self._upstream = host, upstream
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def serve(self) -> None:
        """Until ``close``."""
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(self._upstream)
                except OSError:  # nothing listens there yet
                    client.close()
                    continue
                self._open += [client, server]
                _Connection(self, client, server).start()

    def cut_all(self) -> None:
        """Ends every connection that is open; new ones are accepted."""
        for opened in self._open:
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.cut_all()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for opened in [self._listener, *self._open]:
            opened.close()


class _Connection:
    def __init__(self, proxy: TcpProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self._request = b""

    def start(self) -> None:
        threading.Thread(target=self._pump, args=(self._client, self._server, self._asked), daemon=True).start()
        threading.Thread(target=self._pump, args=(self._server, self._client, self._answered), daemon=True).start()

    def _asked(self, data: bytes) -> bytes:
        if data.startswith((b"GET ", b"PUT ", b"POST ", b"DELETE ", b"HEAD ")):
            self._request = data[:2000]
        return self._proxy.on_request(data)

    def _answered(self, data: bytes) -> bytes:
        return self._proxy.on_reply(data, self._request)

    def _pump(self, source: socket.socket, target: socket.socket, hook: Callable[[bytes], bytes]) -> None:
        try:
            while data := source.recv(CHUNK):
                target.sendall(hook(data))
        except Cut:
            self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            with contextlib.suppress(OSError):
                self._client.shutdown(socket.SHUT_RD)  # wakes the other thread: until it lets go, nothing is closed
            self._client.close()
        except OSError:
            pass
        for side in (self._client, self._server):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def tcp_proxy(upstream: int, host: str = "127.0.0.1") -> Iterator[TcpProxy]:
    """A running proxy before the port ``upstream`` of a machine, by default this one."""
    proxy = TcpProxy(upstream, host)
    threading.Thread(target=proxy.serve, daemon=True).start()
    try:
        yield proxy
    finally:
        proxy.close()


class Spoiler:
    """A proxy's hook that spoils the first answers to requests that begin so; ``num_spoiled`` says how many."""

    def __init__(self, request: bytes, spoil: Callable[[bytes], bytes], times: int = 1) -> None:
        self.num_spoiled = 0
        self._begins, self._spoil, self._times = request, spoil, times

    def __call__(self, data: bytes, request: bytes) -> bytes:
        if not request.startswith(self._begins) or self.num_spoiled >= self._times:
            return data
        self.num_spoiled += 1
        return self._spoil(data)


def cut(data: bytes) -> bytes:
    """Loses the bytes and breaks the connection."""
    raise Cut


def lose(data: bytes) -> bytes:
    """Loses the bytes; the connection stays, and the other side waits for them."""
    return b""


def flip_last_byte(data: bytes) -> bytes:
    """Changes one bit."""
    return data[:-1] + bytes([data[-1] ^ 1])
