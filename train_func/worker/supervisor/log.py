"""The worker's own output, at once to the real stdout and bounded to the store; beside it the history of the attempt.

Both are kept every few seconds, with bounded memory: the history as CSV, in a new file when one is long. No failure of
either is one of the run.
"""

import contextlib
import fcntl
import os
import select
import struct
import sys
import termios
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from train_func import events
from train_func.events import CheckpointSaved, Event, LogGap, StepProgress
from train_func.layout import AttemptKeys
from train_func.metrics import Row, row_of, to_csv
from train_func.worker import masks
from train_func.worker.rank import stacks
from train_func.worker.supervisor.periodic import Periodic

HISTORY_SECONDS = 10.0  # between two uploads of a short file; longer for longer ones, as each carries all of it
LONGEST_FILE = 2**20  # bytes of a file, after which the next one begins
MOST_ROWS = 20_000  # kept while the store is away: more than a day; the oldest go first

PutFile = Callable[[str, bytes], object]


class History(Periodic):
    """Of one attempt. ``put`` stores bytes under a key, and may raise; ``interval`` is in seconds."""

    def __init__(
        self, keys: AttemptKeys, put: PutFile, *, interval: float = HISTORY_SECONDS, longest_file: int = LONGEST_FILE
    ) -> None:
        super().__init__("history")
        self._keys = keys
        self._put = put
        self._interval = interval
        self._longest_file = longest_file
        self._new: deque[Row] = deque(maxlen=MOST_ROWS)
        self._rows: deque[Row] = deque(maxlen=MOST_ROWS)  # of the files that are open
        self._part = 1
        self._unkept = False
        self._length = 0

    def hear(self, event: Event) -> None:
        """Takes what belongs to the history; returns at once."""
        if row := row_of(event):
            self._new.append(row)
        if isinstance(event, CheckpointSaved):  # what goes on from it reports none of the steps before it again
            self.hasten()

    def _pause(self) -> float:
        return self._interval * (1 + 4 * self._length / self._longest_file)

    def _keep(self) -> None:
        while self._new:
            self._rows.append(self._new.popleft())
            self._unkept = True
        if not self._unkept:
            return
        table = to_csv(self._rows)
        self._put(self._keys.metrics_csv(self._part), table)
        self._unkept = False
        self._length = len(table)
        if self._length >= self._longest_file:
            self._rows.clear()
            self._part, self._length = self._part + 1, 0


HEAD = 2**20  # bytes of a log's beginning that are always kept
TAIL = 4 * 2**20  # bytes of its end
LONGEST_LINE = 2**16
SETTLE_SECONDS = 2.0  # longest wait for what was printed last
LOG_SECONDS = 3.0  # between two uploads of a short log; twice that of one of a MiB, because each carries all of it

Put = Callable[[bytes], object]


class BoundedLog:
    """The beginning and the end of a log of any length; what is left out between them is counted."""

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
        """The log as it is kept."""
        gap = LogGap(time="", num_lines=self._num_lines_out, num_bytes=self._num_bytes_out)
        gaps = [f"{events.line(gap)}\n".encode()] if self._num_lines_out else []
        return b"".join([*self._head, *gaps, *self._tail])


class _Stream(threading.Thread):
    """Reads one pipe line by line. Other processes may hold its end for writing open, so that it need not ever end.

    ``ends``: descriptors of its ends, for reading and for writing.
    """

    def __init__(self, ends: tuple[int, int], emit: Callable[[bytes], None]) -> None:
        super().__init__(name="output", daemon=True)
        self._emit = emit
        self._rest = b""
        self._read, self.write = ends
        self._asked, self._ask = os.pipe()
        self._requests: deque[threading.Event | None] = deque()  # None: the last one

    def run(self) -> None:
        ready = select.poll()
        for descriptor in (self._read, self._asked):
            ready.register(descriptor, select.POLLIN)
        while True:
            if self._asked not in dict(ready.poll()):
                self._take(1)
                continue
            os.read(self._asked, 1)
            self._take(_num_unread(self._read))
            if (settled := self._requests.popleft()) is None:
                break
            settled.set()
        if self._rest:
            self._emit(self._rest)
        os.close(self._read)
        os.close(self._asked)

    def _take(self, num_bytes: int) -> None:
        """Passes on at least so many bytes, which are there or will be, as far as their lines are whole."""
        while num_bytes > 0:
            data = os.read(self._read, LONGEST_LINE)
            num_bytes -= len(data)
            *lines, self._rest = (self._rest + data).split(b"\n")
            if len(self._rest) > LONGEST_LINE:
                begin, self._rest = masks.split(self._rest)
                lines.append(begin)
            for line in lines:
                self._emit(line)

    def settle(self, seconds: float) -> None:
        """Returns when all whole lines that were written before this call were passed on, or after ``seconds``."""
        settled = threading.Event()
        self._request(settled)
        settled.wait(seconds)

    def end(self, seconds: float) -> None:
        """The same of all that was written before; what is written later is not passed on."""
        self._request(None)
        self.join(seconds)
        if not self.is_alive():
            os.close(self.write)
            os.close(self._ask)

    def _request(self, settled: threading.Event | None) -> None:
        self._requests.append(settled)
        os.write(self._ask, b".")


def _num_unread(pipe: int) -> int:
    """Bytes that wait in it."""
    (num,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(struct.calcsize("i"))))
    return int(num)


def last_state(line: bytes) -> bytes:
    """A progress bar draws its line again and again after a carriage return: only the last drawing is kept."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


class LogTee:
    """Owns stdout and stderr of this process, and the output of its ranks; alone writes lines that are events.

    ``interval``: seconds between two uploads of a short log.
    """

    def __init__(self, interval: float = LOG_SECONDS) -> None:
        self._real = os.fdopen(os.dup(1), "wb", buffering=0)
        self._lock = threading.Lock()
        self._log = BoundedLog()
        self._first = b""
        self._interval = interval
        self._upload: _Upload | None = None
        self._history: History | None = None
        self._own = self._stream(os.pipe(), b"")
        self._ranks: list[_Stream] = []
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a text file, as Python starts it
        os.dup2(self._own.write, 1)
        os.dup2(self._own.write, 2)

    def rank_output(self, rank: int) -> str:
        """A path; what is written to it appears as lines of this rank."""
        stream = self._stream(os.pipe(), events.OF_RANK.format(rank).encode())
        self._ranks.append(stream)
        return f"/dev/fd/{stream.write}"

    def rank_events(self, rank: int, path: Path) -> None:
        """Makes a pipe at ``path``; what is written to it becomes events of this rank. Raises OSError."""

        def told(line: bytes) -> None:
            with contextlib.suppress(Exception):  # else nothing would read the pipe, and the rank would wait for that
                if event := events.parse(line.decode(errors="replace")):
                    self.say(replace(event, rank=rank))

        self._at(path, told)

    def rank_trace(self, rank: int, path: Path, hear: Callable[[str], object]) -> None:
        """Makes a pipe at ``path``; what is written to it is heard, and appears as the trace of this rank.

        Raises OSError.
        """
        prefix = stacks.PREFIX.format(rank).encode()

        def told(line: bytes) -> None:
            self._emit(prefix + events.escaped(line) + b"\n")
            hear(line.decode(errors="replace"))

        self._at(path, told)

    def _at(self, path: Path, told: Callable[[bytes], None]) -> None:
        """Hears every line that a rank writes to a pipe at ``path``, which is made here."""
        os.mkfifo(path)
        read = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        write = os.open(path, os.O_WRONLY)
        os.set_blocking(read, True)
        stream = _Stream((read, write), told)
        stream.start()
        self._ranks.append(stream)

    def say(self, event: Event) -> None:
        """Writes an event's line, unless it is for the history alone."""
        event = masks.mask(event)
        if not isinstance(event, StepProgress) or event.is_line:
            self._write(events.line(event).encode() + b"\n")  # masked as text, a number in it would be no JSON
        if self._history is not None:
            self._history.hear(event)

    def ranks_ended(self) -> None:
        """Passes on the last words of the ranks; to be called when none of them lives any more."""
        while self._ranks:
            self._ranks.pop().end(SETTLE_SECONDS)

    def begin(self, put: Put, history: History | None = None) -> None:
        """From now on the log is kept by ``put``, and what events say by ``history``.

        The first time from the beginning of the log on; then, in another attempt of the same pod, from here on, with
        the line before that names the pod, and what kept them before keeps nothing any more.
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
        self._upload = _Upload(self._render, put, self._interval)
        self._upload.start()

    def flush(self, seconds: float) -> None:
        """Keeps log and history as they are now, with all whole lines that were printed, within ``seconds``."""
        until = time.monotonic() + seconds
        for stream in (*self._ranks, self._own):
            stream.settle(max(0.0, until - time.monotonic()) / 2)
        self._keep(until)

    def close(self, last: Event, seconds: float) -> None:
        """Gives stdout and stderr back, says ``last`` after all that was printed, and keeps the log a last time.

        ``seconds``: all that may take.
        """
        until = time.monotonic() + seconds
        os.dup2(self._real.fileno(), 1)
        os.dup2(self._real.fileno(), 2)
        self._own.end(SETTLE_SECONDS)
        self.say(last)
        self._keep(until)

    def _keep(self, until: float) -> None:
        for kept in (self._upload, self._history):
            if kept is not None:
                kept.flush(max(0.0, until - time.monotonic()))

    def _stream(self, ends: tuple[int, int], prefix: bytes) -> _Stream:
        stream = _Stream(ends, lambda line: self._emit(prefix + events.escaped(last_state(line)) + b"\n"))
        stream.start()
        return stream

    def _emit(self, line: bytes) -> None:
        self._write(masks.mask_line(line))

    def _write(self, line: bytes) -> None:
        with self._lock:
            self._first = self._first or line
            self._log.add(line)
            with contextlib.suppress(OSError):  # nothing will ever read it again
                self._real.write(line)

    def _render(self) -> bytes:
        with self._lock:
            return self._log.render()


class _Upload(Periodic):
    """Puts the log whenever it has changed."""

    def __init__(self, render: Callable[[], bytes], put: Put, interval: float) -> None:
        super().__init__("log upload")
        self._interval = interval
        self._render = render
        self._put = put
        self._last = b""

    def _pause(self) -> float:
        return self._interval * (1 + len(self._last) / 2**20)

    def _keep(self) -> None:
        if (log := self._render()) != self._last:
            self._put(log)
            self._last = log
