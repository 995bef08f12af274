"""Process trees on Linux: who belongs to whom, and how none of them is left behind."""

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Collection
from pathlib import Path

_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_SET_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
KILL_SECONDS = 10.0  # a process in an uninterruptible call cannot be killed, and is not waited for longer


def die_with(parent: int) -> None:
    """This process is killed when ``parent`` dies, even by SIGKILL; at once when it is dead already."""
    _prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans() -> None:
    """Descendants whose parent dies become children of this process, as they do of process 1 of a pod."""
    _prctl(_SET_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}) failed")


def _children(pid: int) -> list[int]:
    """Direct children of ``pid``, those of all its threads."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (task / "children").read_bytes().split())
    return found


def descendants(pid: int) -> list[int]:
    """Children of ``pid``, their children, and so on; parents come first."""
    found, pending = [], _children(pid)
    while pending:
        found.append(pending.pop())
        pending += _children(found[-1])
    return found


def kill_children_of(thread: int) -> None:
    """Ends the processes that this thread of the process has started, by its native id, with their descendants."""
    with contextlib.suppress(OSError):
        for child in map(int, Path(f"/proc/self/task/{thread}/children").read_bytes().split()):
            for pid in (*descendants(child), child):
                send(pid, signal.SIGKILL)


def send(pid: int, number: int) -> None:
    """Signals ``pid``; one that has ended already, or is another user's, is left alone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def kill_descendants(seconds: float = KILL_SECONDS, spare: Collection[int] = ()) -> None:
    """Ends every descendant of this process, which must be one that adopts orphans, but the children in ``spare``."""
    end = time.monotonic() + seconds
    while (strays := set(_children(os.getpid())) - set(spare)) and time.monotonic() < end:
        for pid in strays:
            for member in (pid, *descendants(pid)):
                send(member, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.002)
