"""make cancel: the place is the one that is named, and what cannot be done is one message."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.messages import unnamed

ROOT = Path(__file__).parents[2]


@pytest.fixture
def cancel(tmp_path):
    """Runs make cancel in a folder that has the Makefile and this interpreter."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name, text in {".venv/bin/python": f'exec {sys.executable} "$@"', "infra/environment.sh": "true"}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/usr/bin/env bash\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    shutil.copy(ROOT / "infra/run_notebook.py", tmp_path / "infra")
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks")
    (tmp_path / ".train_func" / "store").mkdir(parents=True)

    def cancel(*given, **variables):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TRAIN_FUNC_", "MAKE"))}
        environment = {**kept, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT), **variables}
        command = ["make", "-s", "cancel", *given]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        return done.returncode, done.stderr

    return cancel


def test_without_a_job_it_is_told_how_one_is_named(cancel):
    code, said = cancel()
    assert code != 0
    assert unnamed(said, "JOB=", "train_func runs") == []
    assert "line 1" not in said


def test_a_misspelt_parameter_is_told_with_the_one_that_is_meant(cancel):
    code, said = cancel("JOB=a-run", "STORR=file:///store")
    assert code != 0
    assert unnamed(said, "STORR", "did you mean STORE?") == []
    _, said = cancel("JOB=a-run", "QQQQQQ=1")
    assert "QQQQQQ" in said and "did you mean" not in said


def test_a_job_that_is_not_there_is_one_message(cancel):
    code, said = cancel("JOB=no-such-run")
    assert code != 0
    assert said.startswith("JobNotFound: ")
    assert "'no-such-run'" in said
    assert "Traceback" not in said


def test_place_and_store_are_not_taken_from_the_shell(cancel, tmp_path):
    code, said = cancel("JOB=no-such-run", WHERE="Cluster", STORE=f"file://{tmp_path}/other")
    assert code != 0
    assert f"file://{tmp_path}/.train_func/store holds no" in said


@pytest.mark.parametrize("named", [{}, {"TRAIN_FUNC_HOME": "{folder}/other"}], ids=["default", "named"])
def test_make_looks_where_a_notebook_opened_beside_it_looks(cancel, tmp_path, named):
    person = tmp_path / "person"
    (person / ".train_func/store").mkdir(parents=True)
    named = {"HOME": str(person), **{name: value.format(folder=tmp_path) for name, value in named.items()}}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TRAIN_FUNC_")}
    notebook = subprocess.run(
        [sys.executable, "-c", "from train_func import Local; print(Local().store_address())"],
        cwd=ROOT / "notebooks",
        env={**kept, "PYTHONPATH": str(ROOT), **named},
        capture_output=True,
        text=True,
        check=True,
    )
    _, said = cancel("JOB=no-such-run", **named)
    assert f"{notebook.stdout.strip()} holds no" in said


def test_the_store_is_the_one_that_is_named(cancel, tmp_path):
    (tmp_path / "other").mkdir()
    _, said = cancel("JOB=no-such-run", f"STORE=file://{tmp_path}/other")
    assert f"file://{tmp_path}/other holds no" in said
