"""The output of a worker and its ranks: goes to the real stdout at once, and bounded to the store."""

import contextlib
import fcntl
import os
import select
import sys
import termios
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from train_func.wire import events
from train_func.wire.events import Event, LogGap, StepProgress
from train_func.worker import masks
from train_func.worker.rank import stacks
from train_func.worker.supervisor.uploads import HistoryUpload, LogUpload

HEAD = 2**20  # bytes of a log's beginning that are always kept
TAIL = 4 * 2**20  # bytes of its end
LONGEST_LINE = 2**16
SETTLE_SECONDS = 2.0  # longest wait for what was printed last


class BoundedLog:
    """The beginning and the end of a log of any length, with a count of the lines between them."""

    def __init__(self, head: int = HEAD, tail: int = TAIL) -> None:
        self._head_room = head
        self._tail_room = tail
        self._head: list[bytes] = []
        self._tail: deque[bytes] = deque()
        self._num_lines_out = 0
        self._num_bytes_out = 0

    def add(self, line: bytes) -> None:
        """Takes one line, its newline included."""
        if len(line) <= self._head_room:
            self._head_room -= len(line)
            self._head.append(line)
            return
        self._head_room = 0  # the beginning ends with the first line that is too long for it
        self._tail_room -= len(line)
        self._tail.append(line)
        while self._tail_room < 0:
            dropped = self._tail.popleft()
            self._tail_room += len(dropped)
            self._num_lines_out += 1
            self._num_bytes_out += len(dropped)

    def render(self) -> bytes:
        """Returns the log for the store."""
        gap = LogGap(time="", num_lines=self._num_lines_out, num_bytes=self._num_bytes_out)
        gaps = [f"{events.line(gap)}\n".encode()] if self._num_lines_out else []
        return b"".join([*self._head, *gaps, *self._tail])


class _Stream(threading.Thread):
    """Reads one pipe line by line, until no process can write to it, or it is given up."""

    def __init__(self, emit: Callable[[bytes], None]) -> None:
        super().__init__(name="output", daemon=True)
        self._emit = emit
        self._read, self._write = os.pipe()
        self._reading = threading.Lock()
        self._is_over = False
        self.path = f"/proc/{os.getpid()}/fd/{self._write}"
        """The path at which other processes open it for writing."""
        self.start()

    def run(self) -> None:
        rest, readable = b"", select.poll()
        readable.register(self._read, select.POLLIN)
        while not self._is_over:
            readable.poll()
            with self._reading:
                data = os.read(self._read, LONGEST_LINE)
                if not data:
                    break
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._emit(line)
                if len(rest) > LONGEST_LINE:
                    begin, rest = masks.split(rest)
                    self._emit(begin)
        if rest:
            self._emit(rest)
        with self._reading:  # another thread may wait for it to settle
            self._is_over = True
            os.close(self._read)

    def replace(self, *descriptors: int) -> None:
        """Makes these descriptors of this process write to it."""
        for descriptor in descriptors:
            os.dup2(self._write, descriptor)

    def settle(self, seconds: float) -> None:
        """Waits until all whole lines written before this call are passed on, at most ``seconds``."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and self._reading.acquire(timeout=left):
            is_settled = self._is_over or not any(fcntl.ioctl(self._read, termios.FIONREAD, bytes(4)))
            self._reading.release()
            if is_settled:
                return
            time.sleep(0.01)

    def end(self, seconds: float) -> None:
        """Passes on the rest; waits up to ``seconds`` for another process that still has the pipe open."""
        os.close(self._write)
        self.join(seconds)
        self._is_over = True


def last_state(line: bytes) -> bytes:
    """Returns the last drawing of a progress bar, which draws its line again after each carriage return."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


class LogTee:
    """Owns stdout and stderr of this process and the output of its ranks; nothing else writes the lines of events."""

    def __init__(self) -> None:
        self._real = os.fdopen(os.dup(1), "wb", buffering=0)
        self._lock = threading.Lock()
        self._log = BoundedLog()
        self._first = b""
        self._upload: LogUpload | None = None
        self._history: HistoryUpload | None = None
        self._listener: Callable[[Event], object] | None = None
        self._supervisor_output = self._output(b"")
        self._ranks: list[_Stream] = []
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a text file, as Python starts it
        self._supervisor_output.replace(1, 2)

    def rank_output(self, rank: int) -> str:
        """Returns a path; lines written to it appear as output of this rank."""
        return self._of_rank(self._output(events.OF_RANK.format(rank).encode()))

    def rank_events(self, rank: int) -> str:
        """Returns a path; lines written to it become events of this rank."""

        def emit(line: bytes) -> None:
            with contextlib.suppress(Exception):  # else nothing would read the pipe, and the rank would wait for that
                if event := events.parse(line.decode(errors="replace")):
                    self.say(replace(event, rank=rank))

        return self._of_rank(_Stream(emit))

    def rank_trace(self, rank: int, hear: Callable[[str], object]) -> str:
        """Returns a path; lines written to it go to ``hear``, and appear as the trace of this rank."""
        prefix = stacks.PREFIX.format(rank).encode()

        def emit(line: bytes) -> None:
            self._write(masks.mask_line(prefix + events.escaped(line) + b"\n"))
            hear(line.decode(errors="replace"))

        return self._of_rank(_Stream(emit))

    def _of_rank(self, stream: _Stream) -> str:
        self._ranks.append(stream)
        return stream.path

    def say(self, event: Event) -> None:
        """Writes the line of an event, unless it is only for the history."""
        event = masks.mask(event)
        if not isinstance(event, StepProgress) or event.is_line:
            self._write(events.line(event).encode() + b"\n")  # masked as text, a number in it would be no JSON
        if self._history is not None:
            self._history.hear(event)
        if self._listener is not None:
            self._listener(event)

    def tell(self, listener: Callable[[Event], object]) -> None:
        """Passes every event from now on to ``listener``."""
        self._listener = listener

    def ranks_ended(self) -> None:
        """Passes on the last lines of the ranks; called after all of them have ended."""
        while self._ranks:
            self._ranks.pop().end(SETTLE_SECONDS)

    def begin(self, put: Callable[[bytes], object], history: HistoryUpload | None = None) -> None:
        """Stores the log through ``put``, and the values of events through ``history``, from now on.

        The first call stores the log from its beginning. A later call, in another attempt of the same pod, stores it
        from here, after the line that names the pod, and replaces the earlier ``put`` and ``history``.
        """
        if self._upload is not None:
            self._keep(time.monotonic() + SETTLE_SECONDS)
            self._upload.end()
            if self._history is not None:
                self._history.end()
            with self._lock:
                self._log = BoundedLog()
                self._log.add(self._first)
        if history is not None:
            history.start()
        self._history = history
        self._upload = LogUpload(self._render, put)
        self._upload.start()

    def flush(self, seconds: float) -> None:
        """Stores log and history now, with all whole lines that were printed, within ``seconds``."""
        until = time.monotonic() + seconds
        for stream in (*self._ranks, self._supervisor_output):
            stream.settle(max(0.0, until - time.monotonic()) / 2)
        self._keep(until)

    def close(self, last: Event, seconds: float) -> None:
        """Restores stdout and stderr, says ``last`` after all other output, and stores the log for the last time.

        ``seconds``: limit of all of that.
        """
        until = time.monotonic() + seconds
        os.dup2(self._real.fileno(), 1)
        os.dup2(self._real.fileno(), 2)
        self._supervisor_output.end(SETTLE_SECONDS)
        self.say(last)
        self._keep(until)

    def _keep(self, until: float) -> None:
        for upload in (self._upload, self._history):
            if upload is not None:
                upload.flush(max(0.0, until - time.monotonic()))

    def _output(self, prefix: bytes) -> _Stream:
        """Returns the stream of a pipe whose lines appear after a prefix."""
        return _Stream(lambda line: self._write(masks.mask_line(prefix + events.escaped(last_state(line)) + b"\n")))

    def _write(self, line: bytes) -> None:
        with self._lock:
            self._first = self._first or line
            self._log.add(line)
            with contextlib.suppress(OSError):  # nothing will ever read it again
                self._real.write(line)

    def _render(self) -> bytes:
        with self._lock:
            return self._log.render()
