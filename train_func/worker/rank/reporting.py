"""Sends the events of this process: from a rank to its supervisor, from a supervisor to its log, else to stdout."""

import contextlib
import os
import threading
from collections.abc import Callable

from train_func.wire import events
from train_func.wire.events import Event, StepProgress
from train_func.worker import masks
from train_func.worker.rank import marks

LONGEST = 60_000  # bytes of an event on its way to the supervisor, which reads lines of up to 64 KiB
Say = Callable[[Event], object]


def _print(event: Event) -> None:
    if not isinstance(event, StepProgress) or event.is_line:
        print(event, flush=True)


_sink: list[Say] = [_print]


def say(event: Event) -> None:
    """Sends an event at once; prints it in words if there is no supervisor."""
    marks.touch()
    _sink[0](event)


def note(text: str) -> None:
    """Sends a note for a person."""
    say(events.Note(text=text))


def is_heard() -> bool:
    """Returns whether a supervisor, or a stand-in, gets the events of this process."""
    return _sink[0] is not _print


def report_to(sink: Say) -> None:
    """Sends the events of this process to ``sink`` from now on."""
    _sink[0] = sink


def report_through(path: str) -> None:
    """Sends the events of this rank to its supervisor from now on, through the pipe at ``path``."""
    pipe, lock = os.open(path, os.O_WRONLY), threading.Lock()

    def send(event: Event) -> None:
        # The supervisor cuts what its log cannot hold; the history has all. No event ends a rank: where no supervisor
        # reads any more, it is the supervisor's end that does.
        with lock, contextlib.suppress(Exception):
            data = events.line(masks.mask(event), LONGEST).encode() + b"\n"
            while data:
                data = data[os.write(pipe, data) :]

    report_to(send)
