"""infra/environment.sh: an environment with other packages is changed in place, and not under the jobs that use it."""

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.infra.conftest import ROOT
from tests.messages import unnamed

LOCK = "uv==1.0 --hash=sha256:0\n"
PROGRAMS = {
    ".venv/bin/python": f'case "$*" in *pip*) ;; *) exec {sys.executable} "$@" ;; esac',
    ".venv/bin/uv": "exit ${UV_ENDS:-0}",
    "bin/df": "printf '\\n0 0 0 99999999\\n'",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """One whose .venv holds what an earlier lock file said."""
    for path, text in PROGRAMS.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (tmp_path / path).chmod(0o755)
    (tmp_path / "infra").mkdir()
    shutil.copy(ROOT / "infra/environment.sh", tmp_path / "infra")
    (tmp_path / "requirements.lock").write_text(LOCK)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / ".venv/.made-of").write_text("another lock file\n")
    return tmp_path


def set_up(checkout: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    given = {"PATH": f"{checkout}/bin:{os.environ['PATH']}", "PYTHON": sys.executable, **environment}
    command = [checkout / "infra/environment.sh"]
    return subprocess.run(command, env=given, capture_output=True, text=True, timeout=60, check=False)


@contextmanager
def job_of(checkout: Path):
    """A process with the command line of one that controls a job: its id."""
    command = [str(checkout / ".venv/bin/python"), "-c", "read", "-P", "-m", "train_func.client.local.controller"]
    with subprocess.Popen(command, executable=shutil.which("bash"), stdin=subprocess.PIPE) as process:
        yield process.pid


def test_where_nothing_can_be_downloaded_the_environment_stays_and_the_next_run_goes_on(checkout):
    assert set_up(checkout, UV_ENDS="1").returncode != 0
    assert (checkout / ".venv/bin/uv").exists()
    assert not (checkout / ".venv/.made-of").exists()
    assert set_up(checkout).returncode == 0
    assert set_up(checkout, UV_ENDS="1").returncode == 0  # nothing is left to do


def test_other_packages_are_refused_while_a_job_trains_from_the_environment(checkout):
    if not shutil.which("pgrep"):
        pytest.skip("NOT TESTED: pgrep is not here, and without it no job is seen")
    with job_of(checkout) as number:
        done = set_up(checkout)
    assert done.returncode == 1
    assert unnamed(done.stderr, str(number), "cancel") == []
    assert (checkout / ".venv/.made-of").read_text() == "another lock file\n"
    assert set_up(checkout).returncode == 0
