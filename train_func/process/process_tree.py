"""Processes on Linux: who belongs to whom, how none is left behind, and how much memory they hold together."""

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Collection, Sequence
from pathlib import Path

_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_SET_NAME = 15  # PR_SET_NAME
_SET_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
KILL_SECONDS = 10.0  # a process in an uninterruptible call cannot be killed, and is not waited for longer
FAMILY_SECONDS = 0.2  # between two looks at who belongs to the family
EXACT_SECONDS = 1.0  # between two exact looks, where they cost milliseconds per GB


def die_with(parent: int) -> None:
    """This process is killed when ``parent`` dies, even by SIGKILL; at once when it is dead already."""
    _prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans() -> None:
    """Descendants whose parent dies become children of this process, as they do of process 1 of a pod."""
    _prctl(_SET_SUBREAPER, 1)


def set_name(name: str) -> None:
    """Gives this process the name that ps and top show, of at most 15 bytes."""
    ctypes.CDLL(None).prctl(_SET_NAME, name.encode(), 0, 0, 0)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}) failed")


def children(pid: int) -> list[int]:
    """Returns the direct children of ``pid``, those of all its threads. psutil reads every process of the machine."""
    pids: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                pids += map(int, (task / "children").read_bytes().split())
    return pids


def descendants(pid: int) -> list[int]:
    """Returns the children of ``pid``, their children, and so on; parents come first."""
    family, pending = [], children(pid)
    while pending:
        family.append(pending.pop())
        pending += children(family[-1])
    return family


def send(pid: int, number: int) -> None:
    """Signals ``pid``; one that has ended already, or is another user's, is left alone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def kill_descendants(seconds: float = KILL_SECONDS, spare: Collection[int] = ()) -> None:
    """Ends every descendant of this process, which must be one that adopts orphans, but the children in ``spare``."""
    end = time.monotonic() + seconds
    while (living := set(children(os.getpid())) - set(spare)) and time.monotonic() < end:
        for child in living:
            for pid in (child, *descendants(child)):
                send(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, os.WNOHANG)
        time.sleep(0.002)


def reap_orphans(ranks: Collection[int]) -> None:
    """Reaps child processes that have ended, except ``ranks``, whose exit codes are still asked for."""
    with contextlib.suppress(ChildProcessError):
        while (dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and dead.si_pid not in ranks:
            os.waitpid(dead.si_pid, os.WNOHANG)


class FamilyMemory:
    """The memory of everything below this process, together."""

    def __init__(self, limit: int) -> None:
        """``limit``: bytes that the kernel cannot take back."""
        self._limit = limit
        self._family: list[int] = []
        self._family_until = 0.0
        self._suspicious = limit  # the exact look is made only when the resident size has come to it
        self._exact_until = 0.0

    def exceeds(self) -> bool:
        """Returns whether it is above the limit now; to be asked several times a second."""
        now = time.monotonic()
        if now >= self._family_until:
            self._family = descendants(os.getpid())
            self._family_until = now + FAMILY_SECONDS
        resident = 0  # quick to ask, and too high where pages are shared
        for pid in self._family:
            with contextlib.suppress(OSError):
                resident += int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        # A page that a fork shares and then writes counts once more, and the resident size does not grow by it.
        if resident <= self._limit or (resident <= self._suspicious and now < self._exact_until):
            return False
        exact = unreclaimable_bytes(self._family)
        self._suspicious, self._exact_until = resident + max(0, self._limit - exact), now + EXACT_SECONDS
        return exact > self._limit


def unreclaimable_bytes(pids: Sequence[int]) -> int:
    """Returns what the kernel cannot drop: anonymous and shared memory, shared pages counted in proportion (PSS)."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_bytes().splitlines()
            sizes = [line.split()[1] for line in lines if line.startswith((b"Pss_Anon:", b"Pss_Shmem:"))]
            total += 1024 * sum(map(int, sizes))
    return total


def num_memory_kills() -> int:
    """Returns how many processes of this memory group the kernel has killed for want of memory; 0 if unknown."""
    groups = Path("/sys/fs/cgroup")  # of version 2, and of version 1; a container sees its group as the root
    files = [groups / "memory.events", groups / "memory/memory.oom_control"]
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if not controllers:
                files.insert(0, groups / group.strip("/") / "memory.events")
            elif "memory" in controllers.split(","):
                files.insert(0, groups / "memory" / group.strip("/") / "memory.oom_control")
    for path in files:
        with contextlib.suppress(OSError, ValueError, KeyError):
            return int(dict(line.split() for line in path.read_text().splitlines())["oom_kill"])
    return 0
