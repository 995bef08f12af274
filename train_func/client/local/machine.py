"""This machine: the cores, memory and GPUs that this process may use, and the number of workers that they hold.

Too many workers would not fail: they would fill the machine until the kernel kills one process after the other.
"""

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

from train_func.client.job_spec import readable_quantity, whole_quantity
from train_func.process import lock
from train_func.text import counted

# Measured with torch 2.13 on CPU, as memory that the kernel cannot drop: a supervisor has 14 MiB, the template of its
# ranks and one rank together 545 MiB before its model, each further rank 50 to 80 MiB of its own.
WORKER_BYTES = 768 * 2**20
MODEL_COPIES = 4  # weights, gradients, and the two moments of AdamW
WORKERS_PER_CORE = 4  # more only wait for each other
MACHINE_ID = Path("/etc/machine-id")
_CGROUP = Path("/sys/fs/cgroup")  # limits of the container that this process itself runs in, if any
_MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Counts and bytes."""

    cores: int
    memory: int
    memory_free: int
    gpus: tuple[str, ...]
    """Their names in CUDA_VISIBLE_DEVICES."""

    @classmethod
    def look(cls, environment: Mapping[str, str]) -> Self:
        """Returns this machine now."""
        cores = len(os.sched_getaffinity(0))
        quota = _cgroup("cpu.max").split()  # microseconds per period; no number where there is no quota
        if quota and quota[0].isdigit():
            cores = min(cores, max(1, int(quota[0]) // int(quota[1])))
        lines = _MEMINFO.read_text().splitlines()
        kibibytes = {name: int(rest.split()[0]) for name, rest in (line.split(":") for line in lines)}
        total, free = kibibytes["MemTotal"] * 1024, kibibytes["MemAvailable"] * 1024
        limit = _cgroup("memory.max").strip()
        if limit.isdigit() and int(limit) < total:
            # The kernel drops pages of files when memory is needed, and MemAvailable counts them as free too.
            pages = re.findall(r"^(?:in)?active_file (\d+)$", _cgroup("memory.stat"), re.MULTILINE)
            used = int(_cgroup("memory.current") or 0) - sum(map(int, pages))
            total = int(limit)
            free = max(0, min(free, total - max(0, used)))
        return cls(cores=cores, memory=total, memory_free=free, gpus=_gpus(environment))


def _cgroup(name: str) -> str:
    with contextlib.suppress(OSError):
        return (_CGROUP / name).read_text()
    return ""


def _gpus(environment: Mapping[str, str]) -> tuple[str, ...]:
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(name.strip() for name in visible.split(",") if name.strip() not in ("", "-1"))
    count = sum(bool(re.fullmatch(r"nvidia\d+", device.name)) for device in Path("/dev").iterdir())
    if not count and (tool := shutil.which("nvidia-smi")):  # WSL has no device files for its GPUs
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            listed = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=10, check=True)
            count = sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
    return tuple(map(str, range(count)))


def capacity_faults(
    workers: int, machine: Machine, *, num_model_bytes: int, cpu: int | None, memory: str | None, gpu: int
) -> list[str]:
    """Returns why this machine does not hold the workers, and how many it holds.

    Args:
        workers: number of workers.
        machine: the machine now.
        num_model_bytes: size of the weights that every worker loads.
        cpu: cores of each worker, if given; then any number of workers shares the cores.
        memory: memory of each worker, if given; then it is not estimated, and need not be free now.
        gpu: GPUs of each worker; without one, its memory holds the model and the state of its training.
    """
    faults, they = [], counted(workers, "worker")
    if cpu is not None and cpu > machine.cores:
        faults.append(f"cpu={cpu}: this machine has {counted(machine.cores, 'core')}: ask for less cpu")
    if gpu * workers > len(machine.gpus):
        faults.append(
            f"{they} with {counted(gpu, 'GPU')} each; this machine has {len(machine.gpus)}: ask for fewer, or leave "
            "gpu out"
        )
    most = WORKERS_PER_CORE * machine.cores
    if cpu is None and workers > most:
        faults.append(
            f"{they} for the {counted(machine.cores, 'core')} of this machine, and more than {WORKERS_PER_CORE} for "
            f"each only wait for each other: ask for at most workers={most}, or give Local(cpu=1) to start them anyway"
        )
    if memory is None:
        each, room = WORKER_BYTES + (0 if gpu else MODEL_COPIES * num_model_bytes), machine.memory_free
        otherwise = "free memory, or give the memory of each, as Local(memory=...), to start them anyway"
    else:
        each, room = whole_quantity(memory), machine.memory
        otherwise = "ask for less memory"
    if workers * each > room:
        most = room // each
        fewer = f"ask for at most workers={most}" if most else "not even one fits"
        faults.append(
            f"{they} with {readable_quantity(each)} of memory each, {readable_quantity(workers * each)} together; this "
            f"machine has {readable_quantity(machine.memory)}, {readable_quantity(machine.memory_free)} of it free: "
            f"{fewer}; or {otherwise}"
        )
    return faults


def identity(home: Path) -> str:
    """Returns the id of this home on this machine, the same for each process; "" if it cannot be stored.

    A home on a file system that several machines share has another id on each, if the machines have ids.
    """
    path = home / "id"
    try:
        home.mkdir(parents=True, exist_ok=True)
        with lock.hold(home / ".id.lock"):
            if not path.exists():
                path.write_text(secrets.token_hex(16))
            token = path.read_text()
    except OSError:  # no job can have been started from here
        return ""
    machine = ""
    with contextlib.suppress(OSError):  # a container has none
        machine = MACHINE_ID.read_text()
    return hashlib.sha256(f"{token} {machine}".encode()).hexdigest()[:32]
