"""What a supervisor asks of Linux: signals to a group, the end of orphans, memory kills, how a process fares."""

import contextlib
import os
import signal
from collections.abc import Collection
from pathlib import Path


def signal_group(group: int, number: signal.Signals) -> None:
    """Signals every process of the group that is still there."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def reap_orphans(own: Collection[int]) -> None:
    """Reaps child processes that have ended, except ``own``, whose exit codes are still asked for."""
    with contextlib.suppress(ChildProcessError):
        while (dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and dead.si_pid not in own:
            os.waitpid(dead.si_pid, os.WNOHANG)


def num_memory_kills(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """How many processes the kernel has killed in this memory group for want of memory; 0 where it does not say."""
    for path in _memory_files(proc, cgroups):
        with contextlib.suppress(OSError, ValueError):
            for line in path.read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == "oom_kill":
                    return int(value)
    return 0


def _memory_files(proc: Path, cgroups: Path) -> list[Path]:
    """Version 2 and version 1 of control groups; within a container the group is the root that is seen."""
    found = [cgroups / "memory.events", cgroups / "memory" / "memory.oom_control"]
    with contextlib.suppress(OSError):
        for line in (proc / "self" / "cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if not controllers:
                found.insert(0, cgroups / group.strip("/") / "memory.events")
            elif "memory" in controllers.split(","):
                found.insert(0, cgroups / "memory" / group.strip("/") / "memory.oom_control")
    return found


def is_stopped(pid: int) -> bool:
    """Whether a signal such as SIGSTOP has stopped the process."""
    return _stat(pid)[:1] == ["T"]


def kernel_state(pid: int) -> str:
    """The state of the process, a letter, and where in the kernel it waits, as far as that is to be seen."""
    state = "".join(_stat(pid)[:1])
    with contextlib.suppress(OSError):
        place = Path(f"/proc/{pid}/wchan").read_text()
        return f"{state}, in {place}" if place.strip("0") else state
    return state


def _stat(pid: int) -> list[str]:
    """From its third field on; empty for a process that is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []
