"""Connections between the supervisors of one job: a worker asks the host, worker 0, and gets an answer.

Each connection begins with 32 random bytes of either side, and the proof of either side that it knows the key of the
group. Then there is one message and one answer at a time, each with its length before it.
"""

import asyncio
import contextlib
import hmac
import secrets
import socket
import threading
from collections.abc import Callable

ANSWER = 15.0  # seconds in which the host answers; a connection of a network that is gone never breaks by itself
PROOF = 32  # bytes of a challenge, and of the SHA-256 that answers it
LENGTH = 4  # bytes that tell the length of a message; strangers are heard for 64 bytes
MOST_STRANGERS = 64  # connections without a proof that are kept at a time


class Host:
    """Answers the other workers of one job, in one thread, until the process ends.

    It hears only a client that proves to know the key of the group, and closes a connection without a proof after a
    while, or when there are too many, the oldest first: a stranger costs a descriptor for some seconds.
    """

    def __init__(self, answer: Callable[[str], str], end: Callable[[str], None], key: bytes, port: int) -> None:
        """Listens at once. Raises OSError.

        Args:
            answer: returns the answer to a message.
            end: is told the last message of a connection that has ended.
            key: of the group.
            port: to listen at; 0 for any.
        """
        self._answer, self._end, self._key = answer, end, key
        is_dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if is_dual else socket.AF_INET
        self._socket = socket.create_server(("", port), family=family, backlog=128, dualstack_ipv6=is_dual)
        self.port = int(self._socket.getsockname()[1])
        self._strangers: dict[asyncio.Task[None], None] = {}  # in the order in which they came
        self._loop = asyncio.new_event_loop()
        self._serving = self._loop.create_task(self._serve())
        threading.Thread(target=self._run, name="host of the group", daemon=True).start()

    def close(self) -> None:
        """Takes no further connection, and closes those that it has."""
        self._loop.call_soon_threadsafe(self._serving.cancel)

    def _run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError), asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_until_complete(self._serving)

    async def _serve(self) -> None:
        async with await asyncio.start_server(self._hear, sock=self._socket) as server:
            await server.serve_forever()

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task, message = asyncio.current_task(), ""
        assert task is not None
        if len(self._strangers) >= MOST_STRANGERS:
            oldest = next(iter(self._strangers))
            oldest.cancel()
            del self._strangers[oldest]
        self._strangers[task] = None
        with contextlib.suppress(Exception, asyncio.CancelledError), contextlib.closing(writer):
            try:  # whatever a client sends or does not send, the others are served
                async with asyncio.timeout(ANSWER):
                    is_worker = await self._is_worker(reader, writer)
            finally:
                self._strangers.pop(task, None)
            while is_worker:
                length = int.from_bytes(await reader.readexactly(LENGTH))
                message = (await reader.readexactly(length)).decode()
                writer.write(_framed(self._answer(message)))
                await writer.drain()
        if message:
            self._end(message)

    async def _is_worker(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether the other side knows the key; it is then shown that this side knows it too."""
        challenge = secrets.token_bytes(PROOF)
        writer.write(challenge)
        own, proof = await reader.readexactly(PROOF), await reader.readexactly(PROOF)
        if not hmac.compare_digest(proof, _proof(self._key, b"worker", challenge + own)):
            return False
        writer.write(_proof(self._key, b"host", challenge + own))
        return True


class Connection:
    """The way of another worker to the host; its threads share it."""

    def __init__(self, host: str, port: int, key: bytes) -> None:
        """Raises OSError when nothing listens there yet, the name is not known yet, or what listens is not worker 0."""
        self._lock = threading.Lock()
        self._socket = socket.create_connection((host, port), timeout=ANSWER)
        self._file = self._socket.makefile("rb")
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            challenge, own = self._file.read(PROOF), secrets.token_bytes(PROOF)
            self._socket.sendall(own + _proof(key, b"worker", challenge + own))
            if not hmac.compare_digest(self._file.read(PROOF), _proof(key, b"host", challenge + own)):
                raise ConnectionError("what listens there is not worker 0 of this job, or does not know this worker")
        except OSError:
            self.close()
            raise

    def ask(self, message: str) -> str:
        """Returns the answer of the host. Raises OSError when the host has gone."""
        with self._lock:
            self._socket.sendall(_framed(message))
            length = int.from_bytes(self._file.read(LENGTH))
            answer = self._file.read(length)
        if not length or len(answer) < length:
            raise ConnectionError("worker 0 has closed the connection")
        return answer.decode()

    def close(self) -> None:
        """Leaves the connection."""
        self._file.close()
        self._socket.close()


def _framed(message: str) -> bytes:
    content = message.encode()
    return len(content).to_bytes(LENGTH) + content


def _proof(key: bytes, who: bytes, challenges: bytes) -> bytes:
    return hmac.digest(key, who + challenges, "sha256")
