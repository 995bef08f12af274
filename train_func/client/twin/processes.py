"""What Linux says of the processes of a pod: their signal handlers and environment."""

import contextlib
from pathlib import Path


def catches(pid: int, number: int) -> bool:
    """Whether ``pid`` has a handler of its own for a signal: the first process of a pod gets no other signal."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    mask = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(mask, 16) >> (number - 1) & 1)


def of_environment(wanted: dict[str, str]) -> list[int]:
    """Processes of this machine that were started with all these variables."""
    entries = {f"{name}={value}".encode() for name, value in wanted.items()}
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if entries <= set((process / "environ").read_bytes().split(b"\0")):
                found.append(int(process.name))
    return found
