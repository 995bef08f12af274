"""Runs the programs of this folder under torchrun, and shows what all ranks said when one fails."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HANG = 1800  # seconds; on a quiet machine it is one minute


@pytest.fixture(scope="session")
def torchrun(tmp_path_factory):
    """Runs a module with so many ranks; returns the folder it was given, with what was said in ``output``."""

    def run(module, *, num_ranks):
        folder = tmp_path_factory.mktemp(module.rsplit(".", 1)[-1])
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
        done = subprocess.run(
            [*launch, "-m", module, str(folder)],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=HANG,
        )
        (folder / "output").write_text(done.stdout)
        assert done.returncode == 0, done.stdout[-20_000:]
        return folder

    return run


@pytest.fixture(scope="session")
def in_worlds(torchrun):
    """What every rank of every world found, by (world size, rank)."""
    import torch

    from tests.distributed.worlds import WORLD_SIZES

    folder = torchrun("tests.distributed.worlds", num_ranks=max(WORLD_SIZES))
    return {
        (size, rank): torch.load(folder / f"world-{size}-rank-{rank}.pt", weights_only=False)
        for size in WORLD_SIZES
        for rank in range(size)
    }
