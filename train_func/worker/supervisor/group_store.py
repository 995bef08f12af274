"""What the supervisors of one job share: a small key-value store in the memory of worker 0, and who of them is there.

Each connection begins with 32 random bytes of either side, and the proof of either side that it knows the key of the
group. Then there is one request and one answer at a time, each a line of JSON; nothing in it waits for another worker.
It stands in for torch's TCPStore, so that no supervisor has to import torch.
"""

import asyncio
import contextlib
import hmac
import json
import secrets
import socket
import threading
import time
from collections.abc import Collection, Sequence
from typing import Any, Protocol

from train_func.text import counted, listed

PRESENT = 5.0  # seconds after which a worker that has not asked again counts as gone, while the group forms
LONGEST = 2**30  # bytes of a request of a worker of this job; strangers are heard for 64
ANSWER = 20.0  # seconds in which worker 0 answers; a connection of a network that is gone never breaks by itself
PROOF = 32  # bytes of a challenge, and of the SHA-256 that answers it
MOST_STRANGERS = 64  # connections without a proof that are kept at a time
WHO_IS_MISSING = "missing"  # the key of words that say it, while the group forms
_CALLS = frozenset({"set", "get", "check", "add", "compare_set", "join"})


class KeyValue(Protocol):
    """Values by key. Every call raises OSError when the host has gone."""

    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> str: ...
    def check(self, keys: Sequence[str]) -> bool: ...
    def add(self, key: str, amount: int) -> int: ...
    def compare_set(self, key: str, expected: str, desired: str) -> str: ...
    def join(self, worker: int, pod: str, agreed: str) -> "Membership": ...


class Membership(str):
    """Who is there: the group that has all workers, "" while one is missing; see the three answers below."""


MISSING = Membership("")
FORMED = Membership("formed")
TAKEN = Membership("taken")
"""Another living pod has this worker's place, or the group has formed with another one."""


class GroupStore:
    """The store itself, in the memory of worker 0."""

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._lock = threading.Lock()
        self._values: dict[str, str] = {}
        self._members: dict[int, tuple[str, float]] = {}  # the pod of each worker, and when it asked last
        self._agreed: set[int] = set()
        self._proposal = ""
        self._is_formed = False

    def set(self, key: str, value: str) -> None:
        with self._lock:
            self._values[key] = value

    def get(self, key: str) -> str:
        with self._lock:
            return self._values.get(key, "")

    def check(self, keys: Sequence[str]) -> bool:
        with self._lock:
            return all(key in self._values for key in keys)

    def add(self, key: str, amount: int) -> int:
        with self._lock:
            total = int(self._values.get(key, "0")) + amount
            self._values[key] = str(total)
            return total

    def compare_set(self, key: str, expected: str, desired: str) -> str:
        """Sets it when its value is ``expected``, "" for none; returns the value that it has now."""
        with self._lock:
            if self._values.get(key, "") == expected:
                self._values[key] = desired
            return self._values[key]

    def join(self, worker: int, pod: str, agreed: str) -> Membership:
        """Says that ``worker`` is there, in ``pod``; to be called again and again until the answer is FORMED.

        Args:
            worker: its number.
            pod: tells its process from all others.
            agreed: the last answer, which names those who were there together. The group has formed when all of them
                have agreed to the same one: one that died meanwhile cannot.
        """
        now = time.monotonic()
        with self._lock:
            held = self._members.get(worker)
            is_own = held is not None and held[0] == pod
            if self._is_formed:
                return FORMED if is_own else TAKEN
            if held is not None and not is_own and now - held[1] < PRESENT:
                return TAKEN
            self._members[worker] = (pod, now)
            gone = [other for other, (_, asked) in self._members.items() if now - asked >= PRESENT]
            for other in gone:
                del self._members[other]
            return self._membership(worker, agreed)

    def leave(self, pods: Collection[str]) -> None:
        """The connection of these has ended: while the group forms, another pod may have their places at once."""
        with self._lock:
            if not self._is_formed:
                self._members = {worker: held for worker, held in self._members.items() if held[0] not in pods}

    def _membership(self, worker: int, agreed: str) -> Membership:
        if missing := sorted({*range(self._num_workers)} - {*self._members}):
            self._values[WHO_IS_MISSING] = f"not there yet: {counted(len(missing), 'worker')} ({listed(missing[:9])})"
            self._proposal, self._agreed = "", set()
            return MISSING
        proposal = "/".join(pod for _, (pod, _) in sorted(self._members.items()))
        if proposal != self._proposal:
            self._proposal, self._agreed = proposal, set()
        if agreed == proposal:
            self._agreed.add(worker)
        self._is_formed = len(self._agreed) == self._num_workers
        return FORMED if self._is_formed else Membership(proposal)


class Host:
    """Serves a GroupStore to the other workers of one job, in one thread, until the process ends.

    It hears only a client that proves to know the key of the group, and closes a connection without a proof after a
    while, or when there are too many, the oldest first: a stranger costs a descriptor for some seconds.
    """

    def __init__(self, store: GroupStore, key: bytes, port: int) -> None:
        """Listens at once. Raises OSError."""
        self._store, self._key = store, key
        is_dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if is_dual else socket.AF_INET
        self._socket = socket.create_server(("", port), family=family, backlog=128, dualstack_ipv6=is_dual)
        self._socket.setblocking(False)
        self._loop = asyncio.new_event_loop()
        self._accepting = self._loop.create_task(self._accept())
        threading.Thread(target=self._serve, name="group store", daemon=True).start()

    @property
    def port(self) -> int:
        """The port that it listens at."""
        return int(self._socket.getsockname()[1])

    def close(self) -> None:
        """Takes no further connection, and closes those that it has."""
        self._loop.call_soon_threadsafe(self._accepting.cancel)

    def _serve(self) -> None:
        with contextlib.suppress(asyncio.CancelledError), contextlib.closing(self._loop), self._socket:
            self._loop.run_until_complete(self._accepting)

    async def _accept(self) -> None:
        strangers: dict[asyncio.Task[None], None] = {}  # in the order in which they came
        async with asyncio.TaskGroup() as connections:
            while True:
                try:
                    connection, _ = await self._loop.sock_accept(self._socket)
                except OSError:  # no descriptor is left, or the other side has gone already
                    await asyncio.sleep(0.1)
                    continue
                if len(strangers) >= MOST_STRANGERS:
                    oldest = next(iter(strangers))
                    oldest.cancel()
                    del strangers[oldest]
                task = connections.create_task(self._hear(connection, strangers))
                strangers[task] = None
                task.add_done_callback(lambda task: strangers.pop(task, None))

    async def _hear(self, connection: socket.socket, strangers: dict[asyncio.Task[None], None]) -> None:
        pods: set[str] = set()
        with contextlib.suppress(Exception):  # whatever a client sends or does not send, the others are served
            with contextlib.ExitStack() as until_known:
                until_known.callback(connection.close)
                connection.setblocking(False)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                async with asyncio.timeout(ANSWER):
                    if not await self._is_worker(connection):
                        return
                reader, writer = await asyncio.open_connection(sock=connection, limit=LONGEST)
                until_known.pop_all()
            if task := asyncio.current_task():
                strangers.pop(task, None)
            with contextlib.closing(writer):
                while line := await reader.readline():
                    name, *values = json.loads(line)
                    if name not in _CALLS:
                        break
                    if name == "join":
                        pods.add(values[1])
                    writer.write(json.dumps(getattr(self._store, name)(*values)).encode() + b"\n")
                    await writer.drain()
        self._store.leave(pods)

    async def _is_worker(self, connection: socket.socket) -> bool:
        """Whether the other side knows the key; it is then shown that this side knows it too."""
        challenge, said = secrets.token_bytes(PROOF), b""
        await self._loop.sock_sendall(connection, challenge)
        while len(said) < 2 * PROOF:
            if not (more := await self._loop.sock_recv(connection, 2 * PROOF - len(said))):
                return False
            said += more
        own, proof = said[:PROOF], said[PROOF:]
        if not hmac.compare_digest(proof, _proof(self._key, b"worker", challenge + own)):
            return False
        await self._loop.sock_sendall(connection, _proof(self._key, b"host", challenge + own))
        return True


class RemoteStore:
    """The store as the other workers have it; its threads share one connection."""

    def __init__(self, host: str, port: int, key: bytes) -> None:
        """Raises OSError when nothing listens there yet, the name is not known yet, or what listens is not worker 0."""
        self._lock = threading.Lock()
        self._connection = socket.create_connection((host, port), timeout=ANSWER)
        self._file = self._connection.makefile("rb")
        try:
            self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._meet_host(key)
        except OSError:
            self.close()
            raise

    def _meet_host(self, key: bytes) -> None:
        challenge, own = self._file.read(PROOF), secrets.token_bytes(PROOF)
        self._connection.sendall(own + _proof(key, b"worker", challenge + own))
        if not hmac.compare_digest(self._file.read(PROOF), _proof(key, b"host", challenge + own)):
            raise ConnectionError("what listens there is not worker 0 of this job, or takes this for no worker of it")

    def set(self, key: str, value: str) -> None:
        self._call("set", key, value)

    def get(self, key: str) -> str:
        return str(self._call("get", key))

    def check(self, keys: Sequence[str]) -> bool:
        return bool(self._call("check", list(keys)))

    def add(self, key: str, amount: int) -> int:
        return int(self._call("add", key, amount))

    def compare_set(self, key: str, expected: str, desired: str) -> str:
        return str(self._call("compare_set", key, expected, desired))

    def join(self, worker: int, pod: str, agreed: str) -> Membership:
        return Membership(self._call("join", worker, pod, agreed))

    def close(self) -> None:
        """Leaves the connection."""
        self._file.close()
        self._connection.close()

    def _call(self, name: str, *values: Any) -> Any:
        with self._lock:
            self._connection.sendall(json.dumps([name, *values]).encode() + b"\n")
            line = self._file.readline()
        if not line.endswith(b"\n"):
            raise ConnectionError("worker 0 has closed the connection")
        try:
            return json.loads(line)
        except ValueError as error:
            raise ConnectionError(f"what listens there is no worker of this job: {line[:80]!r}") from error


def _proof(key: bytes, who: bytes, challenges: bytes) -> bytes:
    return hmac.digest(key, who + challenges, "sha256")
