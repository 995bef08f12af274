"""Small, read-only and silent disks for tests: a program in a mount namespace of its own, which ends with it."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_IN_NAMESPACE = ("unshare", "--mount", "--map-root-user", "sh", "-c")

needs_mount = pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run([*_IN_NAMESPACE, "mount -t tmpfs tmpfs /mnt"], capture_output=True).returncode != 0,
    reason="this machine lets no user mount a tmpfs in a namespace of their own (unshare --mount --map-root-user)",
)


def run_on_disk(code: str, folder: Path, size: str, *arguments: str) -> list[str]:
    """The lines that a Python program prints; ``folder`` is a disk of its own there, empty, of ``size`` ("1m")."""
    mount = f'mount -t tmpfs -o size={size} tmpfs "{folder}" && exec "$0" "$@"'
    done = subprocess.run(
        [*_IN_NAMESPACE, mount, sys.executable, "-c", code, str(folder), *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


# Mounts a file system over a folder whose program takes no request: a process that looks there hangs.
_FALL_SILENT = """
import ctypes, os, sys

def fall_silent():
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"silent", sys.argv[1].encode(), b"fuse", 0, options.encode()) != 0:
        raise OSError(ctypes.get_errno(), "mount failed")
"""


def run_on_silent_mount(code: str, folder: Path, *arguments: str) -> list[str]:
    """The lines that a Python program prints; after its call of ``fall_silent()`` nothing answers in ``folder``."""
    program = f"{_FALL_SILENT}\n{code}\nsys.stdout.flush()\nos._exit(0)"
    done = subprocess.run(
        [*_IN_NAMESPACE, 'exec "$0" "$@"', sys.executable, "-c", program, str(folder), *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def _can_fall_silent() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        try:
            run_on_silent_mount("fall_silent()", Path(folder))
        except (AssertionError, OSError):
            return False
    return True


needs_silent_mount = pytest.mark.skipif(
    not _can_fall_silent(), reason="this machine lets no user mount a file system of their own (/dev/fuse)"
)
