"""make test-cluster: with which image it runs, and that it never passes for want of one."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STUBS = {
    "bin/kubectl": "echo testbed",
    "bin/mine": "echo registry.example/told:1",
    "checkout/.venv/bin/python": 'echo "$TRAIN_FUNC_IMAGE" "${@: -1}" >>"$TOLD"',
}

SOURCES = re.search(r"^SOURCES=\((.*)\)$", (ROOT / "infra/image.sh").read_text(), re.M)[1].split()


@pytest.fixture
def run(tmp_path):
    """Runs infra/test_cluster.sh in a checkout of its own, where the tests only tell of the image."""
    for name, does in STUBS.items():
        stub = tmp_path / name
        stub.parent.mkdir(parents=True, exist_ok=True)
        stub.write_text(f"#!/usr/bin/env bash\n{does}\n")
        stub.chmod(0o755)
    (tmp_path / "checkout/infra").mkdir()
    script = shutil.copy2(ROOT / "infra/test_cluster.sh", tmp_path / "checkout/infra")
    shutil.copy2(ROOT / "infra/image.sh", tmp_path / "checkout/infra")
    for source in SOURCES:
        (tmp_path / "checkout" / source).touch()

    def run(*tests, **settings):
        told = tmp_path / "told"
        environment = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "TOLD": str(told), **settings}
        done = subprocess.run(
            [script, *tests], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        return done, told.read_text().splitlines() if told.exists() else []

    return run


def test_the_image_given_is_the_one_tested(run):
    done, told = run(IMAGE="registry.example/mine:7")
    assert done.returncode == 0, done.stderr
    assert told == ["registry.example/mine:7 tests/install", *["registry.example/mine:7 tests/cluster"] * 2]


def test_a_program_that_is_named_builds_it(run):
    done, told = run("tests/cluster/test_submit.py", BUILDER="mine")
    assert done.returncode == 0, done.stderr
    assert told == ["registry.example/told:1 tests/cluster/test_submit.py"]


def test_without_either_nothing_is_tested_whatever_the_context_is_called(run):
    done, told = run()
    assert done.returncode != 0
    assert told == []
    assert {"IMAGE=...", "BUILDER=,"} <= set(done.stderr.replace(";", " ").split()), done.stderr
