"""Sends the events of this process on: from a rank to its supervisor, from a supervisor to its log, else to people."""

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
    """Says an event at once; without a supervisor in words."""
    marks.touch()
    _sink[0](event)


def note(text: str) -> None:
    """Says what a person should know."""
    say(events.Note(text=text))


def is_heard() -> bool:
    """Returns whether a supervisor, or who stands for it, hears the events of this process."""
    return _sink[0] is not _print


def report_to(sink: Say) -> None:
    """Sends the events of this process there from now on."""
    _sink[0] = sink


def report_through(path: str) -> None:
    """Sends the events of this rank from now on to its supervisor, through the pipe that it has made for them."""
    pipe, lock = os.open(path, os.O_WRONLY), threading.Lock()

    def send(event: Event) -> None:
        # The supervisor cuts what its log cannot hold; the history has all. No event ends a rank: where no supervisor
        # reads any more, it is the supervisor's end that does.
        with lock, contextlib.suppress(Exception):
            data = events.line(masks.mask(event), LONGEST).encode() + b"\n"
            while data:
                data = data[os.write(pipe, data) :]

    report_to(send)
