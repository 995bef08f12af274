"""make cancel: the place is the one that is named, and what cannot be done is one message."""

import os
import subprocess
import sys

import pytest

from tests.infra.conftest import ROOT
from tests.messages import unnamed


@pytest.fixture
def cancel(make, checkout):
    """Runs make cancel for a person whose home is the checkout: its exit code and what it said."""
    (checkout / ".train_func/store").mkdir(parents=True)

    def cancel(*given, **exported):
        done = make("cancel", *given, **{"HOME": str(checkout), **exported})
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


def test_a_job_that_is_not_there_is_one_message_and_nothing_is_set_up(cancel, checkout):
    code, said = cancel("JOB=no-such-run")
    assert not (checkout / "set-up").exists()
    assert code != 0
    assert said.startswith("JobNotFound: ")
    assert "'no-such-run'" in said
    assert "Traceback" not in said


def test_place_and_store_are_not_taken_from_the_shell(cancel, checkout, tmp_path):
    code, said = cancel("JOB=no-such-run", WHERE="Cluster", STORE=f"file://{tmp_path}/other")
    assert code != 0
    assert f"file://{checkout}/.train_func/store holds no" in said


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
