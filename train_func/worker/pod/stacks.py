"""The stacks of a rank's threads, printed on a signal of its supervisor wherever the rank is. Loads no torch."""

import faulthandler
import signal
import sys
from collections.abc import Iterable

from train_func.process_tree import send

SIGNAL = signal.SIGRTMAX - 3  # which no library takes, as some do SIGUSR1


def answer() -> None:
    """From now on this process prints its stacks when it is asked to; native code need not return for that."""
    faulthandler.register(SIGNAL, file=sys.stderr, all_threads=True, chain=False)


def ask(pids: Iterable[int]) -> None:
    """Has these processes, which all answer, print their stacks; one that a signal has stopped goes on for it."""
    for pid in pids:
        send(pid, SIGNAL)
        send(pid, signal.SIGCONT)
