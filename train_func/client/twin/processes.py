"""Process trees on Linux: who belongs to whom, how much memory they hold, and how none of them is left behind."""

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Collection
from pathlib import Path

_SET_PARENT_DEATH_SIGNAL = 1
_SET_CHILD_SUBREAPER = 36
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
KILL_SECONDS = 10.0  # a process in an uninterruptible call cannot be killed, and is not waited for longer


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


def die_with_parent(number: int) -> None:
    """This process gets signal ``number`` as soon as its parent ends, however that ends."""
    _prctl(_SET_PARENT_DEATH_SIGNAL, number)


def adopt_orphans() -> None:
    """Descendants whose parent ends become children of this process, so that none escapes."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def children(pid: int) -> list[int]:
    """Direct children of ``pid``, those of all its threads."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (task / "children").read_bytes().split())
    return found


def descendants(pid: int) -> list[int]:
    """Children of ``pid``, their children, and so on; parents come first."""
    found, pending = [], children(pid)
    while pending:
        found.append(pending.pop())
        pending += children(found[-1])
    return found


def send(pid: int, number: int) -> None:
    """Signals ``pid``; one that has ended already is left alone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def catches(pid: int, number: int) -> bool:
    """Whether ``pid`` has a handler of its own for a signal: the first process of a pod gets no other signal."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    mask = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(mask, 16) >> (number - 1) & 1)


def kill_descendants(spare: Collection[int] = ()) -> None:
    """Ends every descendant of this process, which must be one that adopts orphans, but the children in ``spare``."""
    end = time.monotonic() + KILL_SECONDS
    while (strays := set(children(os.getpid())) - set(spare)) and time.monotonic() < end:
        for pid in strays:
            for member in (pid, *descendants(pid)):
                send(member, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.002)


def resident_bytes(pids: list[int]) -> int:
    """Sum of the resident sizes: quick, and too high where pages are shared."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * _PAGE_BYTES
    return total


def unreclaimable_bytes(pids: list[int]) -> int:
    """What the kernel cannot drop: anonymous and shared memory, shared pages counted in proportion (PSS)."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_bytes().splitlines()
            total += (
                sum(int(line.split()[1]) for line in lines if line.startswith((b"Pss_Anon:", b"Pss_Shmem:"))) * 1024
            )
    return total


def of_environment(wanted: dict[str, str]) -> list[int]:
    """Processes of this machine that were started with all these variables."""
    entries = {f"{name}={value}".encode() for name, value in wanted.items()}
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if entries <= set((process / "environ").read_bytes().split(b"\0")):
                found.append(int(process.name))
    return found
