"""What the supervisors of one job share: a small key-value store in the memory of worker 0, and who of them is there.

One request and one answer at a time on each connection, each a line of JSON; nothing in it waits for another worker. It
stands in for torch's TCPStore, so that no supervisor has to import torch.
"""

import contextlib
import json
import socket
import socketserver
import threading
import time
from collections.abc import Collection, Sequence
from typing import Any, Protocol

from train_func.counted import counted, listed

PRESENT = 5.0  # seconds after which a worker that has not asked again counts as gone, while the group forms
LONGEST = 2**10  # bytes of the first line of a connection, which may come from anywhere
ANSWER = 20.0  # seconds in which worker 0 answers; a connection of a network that is gone never breaks by itself
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
    """The store itself, of worker 0."""

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
    """Serves a GroupStore to the other workers of one job, in threads, until the process ends."""

    def __init__(self, store: GroupStore, job: str, port: int) -> None:
        """Listens at once. ``job``: names the job; a worker of another one is turned away. Raises OSError."""

        class Connection(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                pods: set[str] = set()
                with contextlib.suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
                    self.connection.settimeout(ANSWER)
                    if self.rfile.readline(LONGEST) != _hello(job):
                        return
                    self.connection.settimeout(None)
                    while line := self.rfile.readline():
                        name, *values = json.loads(line)
                        if name not in _CALLS:
                            return
                        if name == "join":
                            pods.add(values[1])
                        self.wfile.write(json.dumps(getattr(store, name)(*values)).encode() + b"\n")
                store.leave(pods)

        address = ("::", port) if socket.has_dualstack_ipv6() else ("", port)
        self._server = _Server(address, Connection)
        threading.Thread(target=self._server.serve_forever, name="group store", daemon=True).start()

    @property
    def port(self) -> int:
        """The port that it listens at."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Takes no further connection."""
        self._server.shutdown()
        self._server.server_close()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128
    block_on_close = False

    def __init__(self, address: tuple[str, int], handler: type[socketserver.BaseRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


class RemoteStore:
    """The store as the other workers have it; its threads share one connection."""

    def __init__(self, host: str, port: int, job: str) -> None:
        """Raises OSError when nothing listens there yet, or the name is not known yet."""
        self._lock = threading.Lock()
        self._connection = socket.create_connection((host, port), timeout=ANSWER)
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._connection.makefile("rb")
        self._connection.sendall(_hello(job))

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


def _hello(job: str) -> bytes:
    return json.dumps({"train_func": job}).encode() + b"\n"
