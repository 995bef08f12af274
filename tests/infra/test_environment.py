"""infra/environment.sh: a whole environment is changed in place, a half one made anew, neither under jobs."""

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
    ".venv/bin/python": (
        'case "$*" in *"config get global.index-url") echo "$SET_FOR_PIP" ;; *pip*) ;; '
        f'*) exec {sys.executable} "$@" ;; esac'
    ),
    ".venv/bin/uv": (
        'echo "${UV_DEFAULT_INDEX-none}" >index; '
        'case "$*" in *--dry-run*) exit ${INDEX_ENDS:-0} ;; *) exit ${UV_ENDS:-0} ;; esac'
    ),
    "bin/df": "printf '\\n0 0 0 99999999\\n'",
    # -m venv --clear FOLDER makes the programs above anew.
    "bin/python": f'[[ "$*" != *venv* ]] || {{ rm -rf "$4" && cp -r new "$4" && exit; }}; exec {sys.executable} "$@"',
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
    shutil.copytree(tmp_path / ".venv", tmp_path / "new")
    (tmp_path / ".venv/.made-of").write_text("another lock file\n")
    return tmp_path


def set_up(checkout: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    given = {"PATH": f"{checkout}/bin:{os.environ['PATH']}", "PYTHON": f"{checkout}/bin/python", **environment}
    command = [checkout / "infra/environment.sh"]
    return subprocess.run(command, cwd=checkout, env=given, capture_output=True, text=True, timeout=60, check=False)


@contextmanager
def job_of(checkout: Path):
    """A process with the command line of one that controls a job: its id."""
    command = [str(checkout / ".venv/bin/python"), "-c", "read", "-P", "-m", "train_func.client.local.controller"]
    with subprocess.Popen(command, executable=shutil.which("bash"), stdin=subprocess.PIPE) as process:
        yield process.pid


def test_where_nothing_can_be_downloaded_the_environment_stays_and_the_next_run_goes_on(checkout):
    (checkout / ".venv/package").touch()
    assert set_up(checkout, INDEX_ENDS="1").returncode != 0
    assert set_up(checkout).returncode == 0
    assert (checkout / ".venv/package").exists()
    assert set_up(checkout, INDEX_ENDS="1").returncode == 0  # nothing is left to do


def test_an_environment_whose_set_up_did_not_end_is_made_anew(checkout):
    assert set_up(checkout, UV_ENDS="1").returncode != 0
    (checkout / ".venv/half-a-package").touch()
    (checkout / ".venv/bin/uv").unlink()
    assert set_up(checkout).returncode == 0
    assert not (checkout / ".venv/half-a-package").exists()


@pytest.mark.parametrize("reached", ["itself", "a+link (1)"])
def test_other_packages_are_refused_while_a_job_trains_from_the_environment(checkout, reached):
    link = checkout / "a+link (1)"
    link.symlink_to(checkout)
    with job_of({"itself": checkout}.get(reached, link)) as number:
        done = set_up(checkout)
    assert done.returncode == 1
    assert unnamed(done.stderr, str(number), "cancel") == []
    assert (checkout / ".venv/.made-of").read_text() == "another lock file\n"
    assert set_up(checkout).returncode == 0


MIRROR = "https://mirror.example/simple"


@pytest.mark.parametrize(
    ("given", "index"),
    [
        ({}, "none"),
        ({"SET_FOR_PIP": MIRROR}, MIRROR),
        ({"PIP_INDEX_URL": MIRROR, "SET_FOR_PIP": "https://other.example"}, MIRROR),
        ({"UV_INDEX_URL": MIRROR, "PIP_INDEX_URL": "https://other.example"}, MIRROR),
        ({"UV_DEFAULT_INDEX": MIRROR, "PIP_INDEX_URL": "https://other.example"}, MIRROR),
    ],
)
def test_what_is_downloaded_comes_from_the_mirror_that_uv_or_else_pip_is_set_to(checkout, given, index):
    assert set_up(checkout, **given).returncode == 0
    assert (checkout / "index").read_text() == f"{index}\n"
