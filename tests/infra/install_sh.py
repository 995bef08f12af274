"""install.sh as a user would call it, without a cluster, beside programs that stand in for real ones."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IMAGE = "registry.example/train-func:1"


def install(
    *arguments: str | Path,
    folder: Path | None = None,
    programs: Mapping[str, str] = {},
    answer: str = "",
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """As it ended, well or not; ``programs``: scripts that stand in ``folder``, in front of the real ones.

    ``answer``: its standard input.
    """
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    given = {
        "PATH": f"{folder}:{os.environ['PATH']}" if folder else os.environ["PATH"],
        "HOME": str(folder or "/nonexistent"),
        "KUBECONFIG": "/dev/null",
        "TRAIN_FUNC_IMAGE": IMAGE,
        **environment,
    }
    return subprocess.run(
        [ROOT / "install.sh", *arguments],
        env=given,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        input=answer,
    )


def needs_kubectl() -> None:
    """Skips, and says so, where it is not installed."""
    if not shutil.which("kubectl"):
        pytest.skip("kubectl is not here: NOT TESTED what install.sh renders and how it chooses its cluster")
