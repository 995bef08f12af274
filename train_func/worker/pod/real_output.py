"""The stdout that this process was started with: a reader that stands still holds up what is written to it no longer.

A container's output is read by the runtime, a worker's of this machine by a person's program; either may stop reading.
What is left out then is counted where it is missing, and the store has it.
"""

import contextlib
import os
import select
import time

from train_func import events
from train_func.events import LogGap

LONGEST_WAIT = 2.0  # seconds for a reader; while none comes back there is no wait at all
_CHUNK = select.PIPE_BUF  # bytes that a pipe takes at once when it can be written to


class RealOutput:
    """Takes whole lines, of one thread at a time."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._ready = select.poll()
        self._ready.register(descriptor, select.POLLOUT)
        self._num_lines_out = self._num_bytes_out = 0
        self._is_cut = False

    def fileno(self) -> int:
        """Its descriptor."""
        return self._descriptor

    def write(self, line: bytes) -> None:
        """Writes one line, its newline included, or counts it."""
        with contextlib.suppress(OSError):  # nothing will ever read it again
            if (not self._num_lines_out or self._tell_gap()) and self._write(line, LONGEST_WAIT):
                return
            self._num_lines_out += 1
            self._num_bytes_out += len(line)

    def _tell_gap(self) -> bool:
        gap = LogGap(time=events.now(), num_lines=self._num_lines_out, num_bytes=self._num_bytes_out)
        end_of_cut = b"\n" if self._is_cut else b""
        if not self._write(end_of_cut + events.line(gap).encode() + b"\n", 0.0):
            return False
        self._num_lines_out = self._num_bytes_out = 0
        self._is_cut = False
        return True

    def _write(self, data: bytes, seconds: float) -> bool:
        """Whether all of it was written before a wait of so long was over."""
        left, until = data, time.monotonic() + seconds
        while left:
            if not self._ready.poll(max(0.0, until - time.monotonic()) * 1000):
                self._is_cut = self._is_cut or left != data
                return False
            with contextlib.suppress(BlockingIOError):
                left = left[os.write(self._descriptor, left[:_CHUNK]) :]
        return True
