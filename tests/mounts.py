"""Small and read-only disks for tests: a program in a mount namespace of its own, which ends with it."""

import shutil
import subprocess
import sys
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
