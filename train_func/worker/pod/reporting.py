"""Where the events of this process go: from a rank to its supervisor, from a supervisor to its log, else to people."""

import contextlib
import os
import select
import stat
from collections.abc import Callable

from train_func import events
from train_func.events import Event

Say = Callable[[Event], object]


def _print(event: Event) -> None:
    print(event, flush=True)


_sink: list[Say] = [_print]


def say(event: Event) -> None:
    """Says it at once; without a supervisor as words."""
    _sink[0](event)


def note(text: str) -> None:
    """Says what a person should know."""
    say(events.Note(text=text))


def report_to(sink: Say) -> None:
    """From now on the events of this process go there."""
    _sink[0] = sink


def report_through(path: str) -> None:
    """From now on the events of this rank go to its supervisor, through the pipe that it has made for them."""
    pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK)  # fails instead of waiting where no supervisor reads
    if not stat.S_ISFIFO(os.fstat(pipe).st_mode):
        raise OSError(f"{path} is no pipe")
    os.set_blocking(pipe, True)

    def send(event: Event) -> None:
        # One write of at most PIPE_BUF bytes is never mixed with another's, whichever thread or child makes it.
        with contextlib.suppress(OSError):  # no supervisor reads any more: it ends the rank, and no event does
            os.write(pipe, events.line(event, select.PIPE_BUF - 1).encode() + b"\n")

    report_to(send)
