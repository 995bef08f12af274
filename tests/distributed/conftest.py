"""Runs the programs of this folder under torchrun, and shows what all ranks said when one fails."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def torchrun(tmp_path_factory):
    """Runs a module with so many ranks; returns the folder it was given as its first argument."""

    def run(module, *arguments, num_ranks, environment=()):
        folder = tmp_path_factory.mktemp(module.rsplit(".", 1)[-1])
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
        done = subprocess.run(
            [*launch, "-m", module, str(folder), *arguments],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", **dict(environment)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        (folder / "output").write_text(done.stdout)
        assert done.returncode == 0, done.stdout[-20_000:]
        return folder

    return run
