"""What Linux says of the processes of a pod: their signal handlers, memory and environment."""

import contextlib
import os
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def catches(pid: int, number: int) -> bool:
    """Whether ``pid`` has a handler of its own for a signal: the first process of a pod gets no other signal."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    mask = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(mask, 16) >> (number - 1) & 1)


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
