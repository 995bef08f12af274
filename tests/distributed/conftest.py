"""Runs the programs of this folder on several ranks, and shows what all of them said when one fails."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.pods import Job
from train_func.worker.rank.template import QUIET

ROOT = Path(__file__).parents[2]
HANG = 1800  # seconds; on a quiet machine it is one minute


@pytest.fixture
def job(tmp_path):
    """Makes jobs whose pods are processes of this machine; what of them runs in the end is killed."""
    jobs = []

    def make(source, **settings):
        jobs.append(Job(tmp_path / f"job-{len(jobs)}", source, **settings))
        return jobs[-1]

    yield make
    for pod in (pod for made in jobs for pod in made.started if pod.process.poll() is None):
        pod.process.kill()
        pod.process.wait()


@pytest.fixture(scope="session")
def on_ranks(tmp_path_factory):
    """Runs a module with so many ranks; returns the folder it was given, with what was said in ``output``."""

    def run(module, *, num_ranks):
        folder = tmp_path_factory.mktemp(module.rsplit(".", 1)[-1])
        done = subprocess.run(
            [sys.executable, "-u", "-m", "tests.distributed.ranks", module, str(num_ranks), str(folder)],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", **QUIET},
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
def in_worlds(on_ranks, tmp_path_factory):
    """What every rank of every world found, by (world size, rank); one launch for all processes of a test run."""
    import torch

    from tests.distributed.worlds import WORLD_SIZES

    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "in-worlds"
    with shared.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not shared.exists():
            shared.symlink_to(on_ranks("tests.distributed.worlds", num_ranks=max(WORLD_SIZES)))
    return {
        (size, rank): torch.load(shared / f"world-{size}-rank-{rank}.pt", weights_only=False)
        for size in WORLD_SIZES
        for rank in range(size)
    }
