"""What Local() takes this machine for: cores, memory and GPUs, also inside a container with limits of its own."""

import os

import pytest

from train_func.client.local import machine
from train_func.client.local.machine import Machine


@pytest.mark.parametrize(
    ("visible", "gpus"), [("", ()), ("-1", ()), ("2,3", ("2", "3")), ("GPU-5d, MIG-1", ("GPU-5d", "MIG-1"))]
)
def test_only_visible_gpus_are_this_machine_s(visible, gpus):
    assert Machine.look({"CUDA_VISIBLE_DEVICES": visible}).gpus == gpus


GIB = 2**30


@pytest.fixture
def container(tmp_path, monkeypatch):
    """The machine of a container with these files of its cgroup, on a host of 64 GiB with 60 GiB available."""

    def look(**files):
        for name, content in files.items():
            file = tmp_path / "cgroup" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{content}\n")
        meminfo = tmp_path / "meminfo"
        meminfo.write_text(f"MemTotal: {64 * 2**20} kB\nMemAvailable: {60 * 2**20} kB\nHugePages_Total: 0\n")
        monkeypatch.setattr(machine, "_CGROUP", tmp_path / "cgroup")
        monkeypatch.setattr(machine, "_MEMINFO", meminfo)
        return Machine.look({"CUDA_VISIBLE_DEVICES": ""})

    return look


@pytest.fixture
def container_memory(container):
    """What it has, and has free."""

    def look(**files):
        found = container(**files)
        return found.memory, found.memory_free

    return look


def memory_files(limit, used, stat):
    return {"memory.max": limit, "memory.current": used, "memory.stat": stat}


def test_the_page_cache_of_a_container_is_free(container_memory):
    pages = f"shmem {GIB}\ninactive_file {5 * GIB}\nactive_file {2 * GIB}"
    assert container_memory(**memory_files(8 * GIB, 8 * GIB, pages)) == (8 * GIB, 7 * GIB)
    assert container_memory(**memory_files(8 * GIB, 3 * GIB, pages)) == (8 * GIB, 8 * GIB)
    assert container_memory(**memory_files(8 * GIB, 9 * GIB, "")) == (8 * GIB, 0)  # a limit that was lowered
    assert container_memory(**memory_files(8 * GIB, 5 * GIB, "")) == (8 * GIB, 3 * GIB)
    assert container_memory(**memory_files(62 * GIB, 1 * GIB, "")) == (62 * GIB, 60 * GIB)  # the host has no more
    assert container_memory(**memory_files("max", 8 * GIB, "")) == (64 * GIB, 60 * GIB)


def test_a_machine_without_cgroups_has_what_the_kernel_says(container_memory):
    assert container_memory() == (64 * GIB, 60 * GIB)


def test_the_cores_of_a_container_are_those_of_its_quota(container, monkeypatch):
    def quota(micros, period):
        return {"cpu.max": f"{micros or 'max'} {period}"}

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert container().cores == 8
    assert container(**quota(None, 100_000)).cores == 8
    assert container(**quota(300_000, 100_000)).cores == 3
    assert container(**quota(250_000, 100_000)).cores == 2
    assert container(**quota(50_000, 100_000)).cores == 1
    assert container(**quota(1_600_000, 100_000)).cores == 8  # the host has no more
