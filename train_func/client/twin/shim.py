"""The shim of one container: starts its command, keeps its log, its memory limit and its end; leaves nothing behind.

Forked by the controller for every start of a container, as a node's runtime does. It listens on one pipe (a byte
asks for a graceful end, the end of the pipe says that the controller is gone) and tells on another one, in JSON lines.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from train_func import process_tree
from train_func.client.twin import processes
from train_func.process_tree import FamilyMemory

TERMINATE = b"T"
MEMORY_SECONDS = 0.05  # between two looks at the memory
HANDLER_SECONDS = 0.05  # between two looks whether a starting program listens to SIGTERM by now
MESSAGE_BYTES = 4096  # as the kubelet cuts termination messages
LOG_TAIL_BYTES = 2048
LOG_TAIL_LINES = 80
START_ERROR = 128  # what containerd reports when a command cannot be executed


@dataclass(frozen=True)
class Launch:
    """Everything a container needs to start, substitutions done."""

    argv: Sequence[str]
    environment: dict[str, str]
    folder: str
    """Working folder."""
    log: str
    termination: str
    """File of the termination message."""
    memory_limit: int | None
    """Bytes of all its processes together."""
    grace: float
    """Seconds from SIGTERM to SIGKILL."""


class Shim:
    """One container, from its start to the end of its last process.

    ``commands`` is the pipe it reads, ``reports`` the one it writes.
    """

    def __init__(self, launch: Launch, commands: int, reports: int) -> None:
        self.launch = launch
        self.commands = commands
        self.reports = reports
        self.exit_code: int | None = None
        self.out_of_memory = False
        self.kill_at: float | None = None
        self.asking = False
        self.memory = None if launch.memory_limit is None else FamilyMemory(launch.memory_limit)

    def live(self) -> None:
        """Returns when the container has ended and nothing of it is left."""
        self.wake = listen_for_signals()
        process_tree.adopt_orphans()
        try:
            self.container = _start(self.launch)
        except OSError as failure:
            message = f"cannot execute {self.launch.argv[0]!r}: {failure.strerror}"
            self._report(exit_code=START_ERROR, reason="StartError", message=message)
            return
        self._report(pid=self.container.pid)
        while self.exit_code is None:
            self._wait()
            self._look()
        process_tree.kill_descendants()
        reason = "OOMKilled" if self.out_of_memory else "Error" if self.exit_code else "Completed"
        self._report(exit_code=self.exit_code, reason=reason, message=self._message())

    def _wait(self) -> None:
        asking = HANDLER_SECONDS if self.asking else None
        looking = MEMORY_SECONDS if self.memory else None
        limits = [limit for limit in (self._grace_left(), looking, asking) if limit is not None]
        readable, _, _ = select.select([self.wake, self.commands], [], [], min(limits, default=None))
        if self.wake in readable:
            os.read(self.wake, 4096)
        if self.commands in readable:
            if os.read(self.commands, 1) != TERMINATE:
                self._abandon()
            self.asking = True
            if self.kill_at is None:
                self.kill_at = time.monotonic() + self.launch.grace

    def _look(self) -> None:
        """Takes in what has changed: ended processes, a grace period that is over, memory."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self.container.pid:
                    code = os.waitstatus_to_exitcode(ended[1])
                    self.exit_code = code if code >= 0 else 128 - code
        if self.exit_code is None and self.memory and self.memory.exceeds():
            self.out_of_memory = True
            self._kill()
        if self.asking and self.exit_code is None:
            self._ask()
        if self._grace_left() == 0:
            self._kill()

    def _grace_left(self) -> float | None:
        return None if self.kill_at is None else max(0.0, self.kill_at - time.monotonic())

    def _ask(self) -> None:
        """Only the first process gets SIGTERM, and as in a pod only when it has a handler for it.

        One that is just starting gets it as soon as it has one; in a pod that signal is lost, and with
        it the grace period of a job that is cancelled right after its start.
        """
        if processes.catches(self.container.pid, signal.SIGTERM):
            process_tree.send(self.container.pid, signal.SIGTERM)
            self.asking = False

    def _kill(self) -> None:
        for pid in process_tree.descendants(os.getpid()):
            process_tree.send(pid, signal.SIGKILL)
        self.kill_at = None

    def _abandon(self) -> NoReturn:
        """The controller is gone, which alone would end or report this container."""
        process_tree.kill_descendants()
        os._exit(1)

    def _message(self) -> str:
        with contextlib.suppress(OSError), Path(self.launch.termination).open("rb") as file:
            if written := file.read(MESSAGE_BYTES):
                return written.decode(errors="replace")
        return _tail(Path(self.launch.log)) if self.exit_code else ""

    def _report(self, **what: Any) -> None:
        data = json.dumps(what).encode() + b"\n"
        while data:
            data = data[os.write(self.reports, data) :]


def listen_for_signals() -> int:
    """A pipe that gets a byte, its number, for every SIGCHLD and SIGTERM; a terminal's signals are ignored."""
    wake, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda number, frame: None)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return wake


def _start(launch: Launch) -> "subprocess.Popen[bytes]":
    """Executes the command in a session of its own; raises OSError when that is impossible."""
    shim = os.getpid()

    def prepare() -> None:
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_DFL)
        process_tree.die_with(shim)

    with Path(launch.log).open("ab") as log:
        return subprocess.Popen(
            launch.argv,
            env=launch.environment,
            cwd=launch.folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=prepare,
        )


def _tail(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LOG_TAIL_BYTES))
        lines = file.read(LOG_TAIL_BYTES).decode(errors="replace").splitlines(keepends=True)
    return "".join(lines[-LOG_TAIL_LINES:])
