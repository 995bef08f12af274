"""The process of a rank: a child of the supervisor, forked by the template or, if that is impossible, a new program."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from train_func.process.process_tree import kill_descendants
from train_func.worker.rank.source import SourceNeeds
from train_func.worker.rank.template import LONGEST, MODULES, QUIET, SOCKET

START_SECONDS = 180.0  # for the template's imports on a slow machine; then ranks are started without it
ANSWER_SECONDS = 30.0  # for a fork
KILL_SECONDS = 2.0  # for what was forked and did not answer


class _Forked:
    """A child of this process that another process has started; exit codes are those of Popen."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._exit_code: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        with self._lock:
            if self._exit_code is None:
                try:
                    pid, status = os.waitpid(self.pid, os.WNOHANG)
                except ChildProcessError:  # this process has killed it, and asked for no exit code
                    pid, status = self.pid, signal.SIGKILL
                if pid:
                    self._exit_code = os.waitstatus_to_exitcode(status)
            return self._exit_code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def wait(self, timeout: float) -> int:
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(f"rank in process {self.pid}", timeout)
            time.sleep(0.01)
        return code


RankProcess = subprocess.Popen[bytes] | _Forked


class Template:
    """The template of this pod; a rank that it cannot fork starts as a new program."""

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._process: subprocess.Popen[bytes] | None = None
        self._asks: socket.socket | None = None
        self._until = 0.0  # it says that it is ready
        self._is_ready = False
        self._is_refused = False  # to fork, for a reason that its imports would bring about again

    @property
    def pid(self) -> int | None:
        """The id of the template's process."""
        return self._process.pid if self._process else None

    def start(self, source: Path, *, has_task: bool) -> None:
        """Starts the template, unless it runs, has refused, or has nothing to import for the function in ``source``.

        ``has_task``: whether the run of that function has a task.
        """
        if self._is_refused or (self._process and self._process.poll() is None):
            return
        modules = SourceNeeds.of(source).of_template(has_task=has_task)
        if not modules:
            return
        asks, template_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._until = time.monotonic() + START_SECONDS
        variables = {
            "TRAIN_FUNC_SUPERVISOR": str(os.getpid()),
            "OMP_NUM_THREADS": str(self._num_threads),
            SOCKET: str(template_end.fileno()),
            MODULES: " ".join(modules),
        }
        self._process = subprocess.Popen(
            _program("template"),
            env=os.environ | QUIET | variables,
            pass_fds=[template_end.fileno()],
            start_new_session=True,
        )
        template_end.close()
        self._asks, self._is_ready = asks, False

    def is_ready(self, seconds: float = 0.0) -> bool:
        """Returns whether ranks can be started; waits for that at most ``seconds``."""
        if self._asks is None or self._is_ready:
            return True
        readable, _, _ = select.select([self._asks], [], [], seconds)
        if readable:
            self._is_ready = bool(self._asks.recv(LONGEST))
        elif time.monotonic() > self._until:
            self._give_up("its imports take too long", [])
            return True
        return bool(readable)

    def rank(self, variables: Mapping[str, str], output: str, earlier: Collection[int]) -> RankProcess:
        """Starts a rank.

        Args:
            variables: variables of its environment, besides those of this process.
            output: path of the pipe for its output.
            earlier: process ids of the ranks that were started before.
        """
        if pid := self._forked(variables, output, earlier):
            return _Forked(pid)
        with open(output, "wb") as to:  # noqa: PTH123
            return subprocess.Popen(
                _program("rank"), env=os.environ | dict(variables), stdout=to, stderr=to, start_new_session=True
            )

    def _forked(self, variables: Mapping[str, str], output: str, earlier: Collection[int]) -> int:
        if self._asks is None:
            return 0
        self._asks.settimeout(ANSWER_SECONDS)
        users = {name: os.environ[name] for name in QUIET if name in os.environ}
        request = json.dumps({"variables": users | dict(variables)}).encode()
        descriptor = os.open(output, os.O_WRONLY)
        answer, reason = {}, "it has ended"
        try:
            socket.send_fds(self._asks, [request], [descriptor])
            answer = json.loads(self._asks.recv(LONGEST) or b"{}")
        except (OSError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"
        finally:
            os.close(descriptor)
        if not (pid := int(answer.get("pid", 0))):
            self._is_refused = "refused" in answer
            self._give_up(answer.get("refused", reason), earlier)
        return pid

    def _give_up(self, reason: str, earlier: Collection[int]) -> None:
        """Ends the template, and a rank that it may have forked without an answer in time."""
        print(f"ranks start as new programs: the template cannot fork: {reason}")
        if self._asks:
            self._asks.close()
            self._asks = None
        kill_descendants(KILL_SECONDS, spare=earlier)


def _program(name: str) -> list[str]:
    return [sys.executable, "-u", "-m", "train_func.worker", name]
