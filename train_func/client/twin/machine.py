"""What this machine has: cores, memory, GPUs, as far as this process may use them; and what tells it from others."""

import contextlib
import hashlib
import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from train_func import lock

MACHINE_ID = Path("/etc/machine-id")
_CGROUP = Path("/sys/fs/cgroup")  # limits of the container that this process itself runs in, if any
_MEMINFO = Path("/proc/meminfo")
# Of cgroups of version 2 and 1: the limit, what is used, and what of that are pages of files. The kernel drops those
# when memory is expected, and MemAvailable counts them as free too.
_MEMORY = (
    ("memory.max", "memory.current", "memory.stat", ("inactive_file", "active_file")),
    (
        *("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
        ("total_inactive_file", "total_active_file"),
    ),
)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Counts and bytes."""

    cores: int
    memory: int
    memory_free: int
    gpus: tuple[str, ...]
    """What CUDA_VISIBLE_DEVICES calls them."""

    @classmethod
    def look(cls, environment: Mapping[str, str]) -> Self:
        """This machine now."""
        memory, free = _memory()
        return cls(cores=_cores(), memory=memory, memory_free=free, gpus=_gpus(environment))


def _cores() -> int:
    cores = len(os.sched_getaffinity(0))
    # Microseconds per period, of cgroups of version 2, else 1: no number where there is no quota.
    quota = (_cgroup("cpu.max") or _cgroup("cpu/cpu.cfs_quota_us") + _cgroup("cpu/cpu.cfs_period_us")).split()
    if len(quota) == 2 and quota[0].isdigit():
        cores = min(cores, max(1, int(quota[0]) // int(quota[1])))
    return cores


def _memory() -> tuple[int, int]:
    lines = _MEMINFO.read_text().splitlines()
    kibibytes = {name: int(rest.split()[0]) for name, rest in (line.split(":") for line in lines)}
    total, free = kibibytes["MemTotal"] * 1024, kibibytes["MemAvailable"] * 1024
    for name, used, stat, pages in _MEMORY:
        limit = _cgroup(name).strip()
        if limit.isdigit() and int(limit) < total:
            counts = dict(re.findall(r"^(\w+) (\d+)$", _cgroup(stat), re.MULTILINE))
            held = int(_cgroup(used) or 0) - sum(int(counts.get(kind, 0)) for kind in pages)
            total = int(limit)
            free = max(0, min(free, total - max(0, held)))
    return total, free


def _cgroup(name: str) -> str:
    with contextlib.suppress(OSError):
        return (_CGROUP / name).read_text()
    return ""


def _gpus(environment: Mapping[str, str]) -> tuple[str, ...]:
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(name.strip() for name in visible.split(",") if name.strip() not in ("", "-1"))
    count = sum(bool(re.fullmatch(r"nvidia\d+", device.name)) for device in Path("/dev").iterdir())
    return tuple(map(str, range(count or _listed_gpus())))


def _listed_gpus() -> int:
    """WSL has no device files for its GPUs."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return 0
    try:
        listed = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines()) if listed.returncode == 0 else 0


def identity(home: Path) -> str:
    """The same for every process of this machine that has this home, and for no other; "" where none can be kept.

    A home on a file system that several machines share is another one on each, where the machines have an id.
    """
    path = home / "id"
    try:
        if not path.exists():
            home.mkdir(parents=True, exist_ok=True)
            with lock.hold(home / ".id.lock"):
                if not path.exists():
                    aside = home / ".id.new"
                    aside.write_text(secrets.token_hex(16))
                    aside.replace(path)
        own = path.read_text()
    except OSError:  # no job can have been started from here
        return ""
    machine = ""
    with contextlib.suppress(OSError):  # a container has none
        machine = MACHINE_ID.read_text()
    return hashlib.sha256(f"{own} {machine}".encode()).hexdigest()[:32]
