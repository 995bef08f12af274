"""Prints the stacks of a rank on request, and the traceback of the error that ends it.

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
    """Makes this process print its stacks on request, also while native code runs.

    It prints to the pipe at ``path``; to stderr if there is no pipe, or nothing reads it.
    """
    with contextlib.suppress(OSError):
        if path:
            _pipes.append(os.open(path, os.O_WRONLY))
    faulthandler.register(SIGNAL, file=_pipes[0] if _pipes else sys.stderr, all_threads=True, chain=False)


def print_traceback(error: BaseException) -> None:
    """Prints the traceback of the error that ends this process."""
    if not _pipes:
        traceback.print_exception(error)
        return
    left = "".join(traceback.format_exception(error)).encode(errors="replace")
    with contextlib.suppress(OSError):  # no supervisor reads any more
        while left:
            left = left[os.write(_pipes[0], left) :]


def ask(pids: Iterable[int]) -> None:
    """Makes these processes print their stacks; all of them must have called ``answer``. A stopped one is continued."""
    for pid in pids:
        send(pid, SIGNAL)
        send(pid, signal.SIGCONT)


def listen() -> None:
    """Makes this supervisor notice a person's request for stacks; only in the main thread."""
    signal.signal(ASKED, lambda number, frame: _asked.append(number))


def are_asked_for() -> bool:
    """Returns whether a person has asked for stacks since the last call."""
    is_asked = bool(_asked)
    _asked.clear()
    return is_asked
