"""Writes where a rank is: its stacks when it is asked for them, and the traceback of the error that ends it.

They go to a pipe of their own, so that they are told from what the function prints. Loads no torch.
"""

import contextlib
import faulthandler
import os
import signal
import sys
import traceback
from collections.abc import Iterable

from train_func.process.process_tree import send

SIGNAL = signal.SIGRTMAX - 3  # which no library takes, as some do SIGUSR1
ASKED = signal.SIGQUIT  # of a supervisor by a person, as of a Java program
VARIABLE = "TRAIN_FUNC_TRACE"
PREFIX = "[rank {} trace] "
_pipes: list[int] = []
_asked: list[int] = []


def answer(path: str | None) -> None:
    """Makes this process print its stacks when it is asked to; native code need not return for that.

    To the pipe at ``path``; where there is none, or nothing reads it, to stderr.
    """
    with contextlib.suppress(OSError):
        if path:
            _pipes.append(os.open(path, os.O_WRONLY))
    faulthandler.register(SIGNAL, file=_pipes[0] if _pipes else sys.stderr, all_threads=True, chain=False)


def print_traceback(error: BaseException) -> None:
    """Prints where ``error`` has ended this process."""
    if not _pipes:
        traceback.print_exception(error)
        return
    left = "".join(traceback.format_exception(error)).encode(errors="replace")
    with contextlib.suppress(OSError):  # no supervisor reads any more
        while left:
            left = left[os.write(_pipes[0], left) :]


def ask(pids: Iterable[int]) -> None:
    """Has these processes, which all answer, print their stacks; one that a signal has stopped goes on for it."""
    for pid in pids:
        send(pid, SIGNAL)
        send(pid, signal.SIGCONT)


def listen() -> None:
    """Makes this supervisor notice that a person asks where its ranks are; only in the main thread."""
    signal.signal(ASKED, lambda number, frame: _asked.append(number))


def are_asked_for() -> bool:
    """Returns whether a person has asked since the last call."""
    asked = bool(_asked)
    _asked.clear()
    return asked
