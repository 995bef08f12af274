"""What the workers of the conformance scenarios do: plain Python, for any image. ``python program.py BEHAVIOUR ...``

Worker 0 keeps a meeting point where the rendezvous would be: an incarnation of a worker has no other way to learn that
it is not the first, because nothing of the first is left. CONFORMANCE_PACE is how long a worker lives so that every
state of it is seen, in seconds.
"""

import json
import os
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from typing import NoReturn

WORKER = int(os.environ["TRAIN_FUNC_WORKER"])
PACE = float(os.environ["CONFORMANCE_PACE"])
HOST, _, PORT = os.environ["PET_RDZV_ENDPOINT"].partition(":")
LONGEST_WAIT = 120


class Meeting(socketserver.ThreadingTCPServer):
    """Counts the incarnations that come (``hello``), and lets workers wait for one that has done its part."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 50

    def __init__(self) -> None:
        super().__init__(("", int(PORT)), Visit)
        self.visits: dict[str, int] = {}
        self.done: dict[str, threading.Event] = {}
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def answer(self, word: str, worker: str) -> int:
        done = self.done.setdefault(worker, threading.Event())
        if word == "await":
            return int(done.wait(LONGEST_WAIT))
        if word == "done":
            done.set()
            return 0
        self.visits[worker] = self.visits.get(worker, 0) + 1
        return self.visits[worker] - 1


class Visit(socketserver.StreamRequestHandler):
    """One question: a word and the number of a worker."""

    def handle(self) -> None:
        word, worker = self.rfile.readline().decode().split()
        assert isinstance(self.server, Meeting)
        self.wfile.write(f"{self.server.answer(word, worker)}\n".encode())


def ask(word: str, worker: int) -> int:
    """Asks at the meeting point, which may not be there yet."""
    end = time.monotonic() + LONGEST_WAIT
    while time.monotonic() < end:
        try:
            with socket.create_connection((HOST, int(PORT)), timeout=LONGEST_WAIT) as connection:
                connection.sendall(f"{word} {worker}\n".encode())
                return int(connection.makefile().readline())
        except (OSError, ValueError):
            time.sleep(0.1)
    raise TimeoutError(f"no peer at {HOST}:{PORT}")


def end(exit_code: str) -> NoReturn:
    time.sleep(PACE)
    sys.exit(int(exit_code))


def fail(how: str) -> None:
    """Worker 1 fails; the others end well, long after it."""
    if WORKER != 1:
        ask("await", 1)
        time.sleep(2 * PACE)
        return
    time.sleep(PACE)
    ask("done", 1)
    if how == "exception":
        raise ZeroDivisionError("a bug")
    sys.exit(int(how))


def fail_at_first(times: str, how: str) -> None:
    """Worker 1 fails so many times and then succeeds; the others wait for that."""
    if WORKER != 1:
        ask("await", 1)
        time.sleep(PACE)
        return
    before = ask("hello", 1)
    time.sleep(PACE)
    if before < int(times):
        FAILURES[how]()
    ask("done", 1)


def fail_and_stay() -> NoReturn:
    """Worker 1 fails once; then both work until they are asked to stop."""
    if WORKER == 1 and ask("hello", 1) == 0:
        end("143")
    stay("143")


def killed() -> NoReturn:
    """A process of the worker is killed; the first process says so, as the supervisor does."""
    died = subprocess.run([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], check=False)
    sys.exit(128 - died.returncode)


def kill_itself() -> NoReturn:
    """In a pod the first process cannot be killed from inside: it goes on, and says 144."""
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(PACE)
    sys.exit(144)


def stay(exit_code: str) -> NoReturn:
    """Works until it is asked to stop, which it does with the code."""
    on_stop(int(exit_code))
    work()


def on_stop(exit_code: int) -> None:
    """Takes its time, so that every observer sees that it is stopping."""

    def stop(*_: object) -> None:
        time.sleep(PACE * 2 / 3)
        os._exit(exit_code)

    signal.signal(signal.SIGTERM, stop)


def be_deaf() -> NoReturn:
    """Works until it is killed."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    work()


def work() -> NoReturn:
    print("ready", flush=True)
    time.sleep(3600)
    sys.exit(1)


def leave_first() -> None:
    """Worker 0 ends well while the others work on."""
    time.sleep(4 * PACE if WORKER else PACE)


FAILURES = {
    "143": lambda: sys.exit(143),
    "144": lambda: sys.exit(144),
    "killed": killed,
    "kill_itself": kill_itself,
    "stay_143": lambda: stay("143"),
}
BEHAVIOURS = {
    behaviour.__name__: behaviour for behaviour in (end, fail, fail_at_first, fail_and_stay, stay, be_deaf, leave_first)
}

if __name__ == "__main__":
    print(json.dumps(dict(os.environ)), flush=True)
    meeting = Meeting() if WORKER == 0 else None
    BEHAVIOURS[sys.argv[1]](*sys.argv[2:])
