"""Linux's means against orphans: death signals, adoption, process groups; and its word on memory kills."""

import contextlib
import ctypes
import os
import signal
from collections.abc import Collection
from pathlib import Path

_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_SET_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER


def die_with(parent: int) -> None:
    """This process is killed when ``parent`` dies, even by SIGKILL; at once when it is dead already."""
    _prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans() -> None:
    """Grandchildren whose parent dies become children of this process, as they do of process 1 of a pod."""
    _prctl(_SET_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "prctl"):
        return  # macOS has no such call: there the job's controller sweeps
    if library.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}) failed")


def signal_group(group: int, number: signal.Signals) -> None:
    """Signals every process of the group that is still there."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def reap_orphans(own: Collection[int]) -> None:
    """Reaps child processes that have ended, except ``own``, whose exit codes are still asked for."""
    with contextlib.suppress(ChildProcessError):
        while (dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and dead.si_pid not in own:
            os.waitpid(dead.si_pid, os.WNOHANG)


def kill_descendants(seconds: float) -> None:
    """Kills and buries whatever this process has started or adopted; waits at most ``seconds`` for them."""
    import psutil

    for _ in range(3):  # a process may fork while it is being looked for
        left = psutil.Process().children(recursive=True)
        if not left:
            return
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=seconds / 3)


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
