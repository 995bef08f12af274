"""Connections between the supervisors of one job: a worker reports to the host, in the lead, and gets an order.

On each connection both sides first send 32 random bytes, and prove that they know the key of the group. Then reports
and orders take turns; each has its length before it.
"""

import asyncio
import contextlib
import hmac
import secrets
import socket
import threading
import time

from train_func.worker.supervisor.coordinator import AWAY_SECONDS, Coordinator, Order, Report

ANSWER_SECONDS = 15.0  # in which the host answers; a connection of a network that is gone never breaks by itself
GREETING_SECONDS = 5.0  # in which the other side proves that it knows the key; a process that was stopped never does
PROOF = 32  # bytes of a challenge, and of the SHA-256 that answers it
LENGTH = 4  # bytes that tell the length of a message; strangers are heard for 64 bytes
RETRY_SECONDS = 0.1  # between two tries to find a way that has broken


class Host:
    """Passes the reports of the other workers to the coordinator, in one thread, until the process ends.

    It hears only a client that proves that it knows the key of the group. It closes a connection without a proof after
    some seconds, so a stranger costs a descriptor for that time.
    """

    def __init__(self, coordinator: Coordinator, key: bytes, port: int) -> None:
        """Listens at once, at a free port if ``port`` is 0. Raises OSError."""
        self._coordinator, self._key = coordinator, key
        is_dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if is_dual else socket.AF_INET
        self._socket = socket.create_server(("", port), family=family, backlog=128, dualstack_ipv6=is_dual)
        self.port = int(self._socket.getsockname()[1])

        async def serve() -> None:
            async with await asyncio.start_server(self._hear, sock=self._socket) as server:
                await server.serve_forever()

        threading.Thread(target=lambda: asyncio.run(serve()), name="host of the group", daemon=True).start()

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        report = None
        with contextlib.suppress(Exception), contextlib.closing(writer):  # whatever one sends, the others are served
            async with asyncio.timeout(ANSWER_SECONDS):
                is_worker = await self._is_worker(reader, writer)
            while is_worker:
                length = int.from_bytes(await reader.readexactly(LENGTH))
                report = Report.from_json(await reader.readexactly(length))
                writer.write(_framed(self._coordinator.report(report).to_json()))
                await writer.drain()
        if report:
            self._coordinator.lose(report)

    async def _is_worker(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Returns whether the other side knows the key; it is then shown that this side knows it too."""
        challenge = secrets.token_bytes(PROOF)
        writer.write(challenge)
        counter, proof = await reader.readexactly(PROOF), await reader.readexactly(PROOF)
        if not hmac.compare_digest(proof, _proof(self._key, b"worker", challenge + counter)):
            return False
        writer.write(_proof(self._key, b"host", challenge + counter))
        return True


class Connection:
    """The connection of another worker to the host; if it breaks and both sides live, it is made again."""

    def __init__(self, host: str, port: int, key: bytes) -> None:
        """Raises OSError if nothing listens there yet, the name is unknown, or the listener is not the lead."""
        self._address, self._key = (host, port), key
        self._connect()

    def report(self, report: Report) -> Order:
        """Returns the order to a report, which may arrive twice; not for several threads at once.

        Raises OSError if the host has gone: nothing listens there, or a break lasts longer than AWAY_SECONDS.
        """
        until = 0.0
        while True:
            try:
                if until:
                    self._connect()
                self._socket.sendall(_framed(report.to_json()))
                length = int.from_bytes(self._file.read(LENGTH))
                answer = self._file.read(length)
                if not length or len(answer) < length:
                    raise ConnectionError("the lead has closed the connection")
                return Order.from_json(answer)
            except OSError as error:
                self.close()
                until = until or time.monotonic() + AWAY_SECONDS
                if isinstance(error, ConnectionRefusedError) or time.monotonic() > until:
                    raise
                time.sleep(RETRY_SECONDS)

    def close(self) -> None:
        """Closes the connection."""
        self._file.close()
        self._socket.close()

    def _connect(self) -> None:
        self._socket = socket.create_connection(self._address, timeout=AWAY_SECONDS)
        self._socket.settimeout(GREETING_SECONDS)
        self._file = self._socket.makefile("rb")
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            challenge, counter = self._file.read(PROOF), secrets.token_bytes(PROOF)
            self._socket.sendall(counter + _proof(self._key, b"worker", challenge + counter))
            if not hmac.compare_digest(self._file.read(PROOF), _proof(self._key, b"host", challenge + counter)):
                raise ConnectionError("what listens there is not the lead of this job, or does not know this worker")
            self._socket.settimeout(ANSWER_SECONDS)
        except OSError:
            self.close()
            raise


def _framed(content: bytes) -> bytes:
    return len(content).to_bytes(LENGTH) + content


def _proof(key: bytes, who: bytes, challenges: bytes) -> bytes:
    return hmac.digest(key, who + challenges, "sha256")
