"""make run: a parameter that the notebook does not have is refused by name, before anything is set up."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.messages import unnamed

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(tmp_path):
    """Runs make run in a folder where set-up and notebook only leave a file: (what they left, exit code, said)."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks")
    (tmp_path / "infra").mkdir()
    shutil.copy(ROOT / "infra/notebook_parameters.py", tmp_path / "infra")
    told = 'printf \'%s %s\' "$*" "${ROWS:-}${STORE:+ $STORE $TRAIN_FUNC_STORE}${IMAGE:-}" >ran'
    scripts = {"environment.sh": "touch set-up", "notebook.sh": told}
    for name, text in scripts.items():
        (tmp_path / "infra" / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (tmp_path / "infra" / name).chmod(0o755)

    def run(*given, **exported):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "TRAIN_FUNC_"))}
        environment = kept | exported
        done = subprocess.run(
            ["make", "-s", "run", *given],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        left = {name: path.read_text() for name in ("set-up", "ran") if (path := tmp_path / name).exists()}
        return left, done.returncode, done.stderr

    return run


def test_without_a_name_it_is_the_first_notebook(run):
    assert run()[:2] == ({"set-up": "", "ran": "01_finetune "}, 0)


def test_the_notebook_is_the_one_that_is_named_and_is_given_its_parameters(run):
    assert run("NOTEBOOK=02_any_function", "ROWS=7")[:2] == ({"set-up": "", "ran": "02_any_function 7"}, 0)


def test_what_the_shell_has_exported_for_other_programs_is_no_parameter(run):
    exported = {"NOTEBOOK": "04_imdb", "ROWS": "7", "WORKERS": "9", "STORE": "file:///other", "IMAGE": "other"}
    assert run(NOTEBOOK="02_any_function")[:2] == ({"set-up": "", "ran": "01_finetune "}, 0)
    assert run("NOTEBOOK=02_any_function", **exported)[:2] == ({"set-up": "", "ran": "02_any_function "}, 0)
    left, _, _ = run("NOTEBOOK=02_any_function", "ROWS=8", "STORE=file:///s", **exported)
    assert left["ran"] == "02_any_function 8 file:///s file:///s"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["MODLE=x"], ["MODLE", "did you mean MODEL?", "LEARNING_RATE"]),
        (["NOTEBOOK=02_any_function", "MODEL=x"], ["MODEL", "02_any_function", "ROWS"]),
        (["ROWZ=1", "WORKRES=2"], ["ROWZ", "WORKRES", "did you mean WORKERS?"]),
        (["NOTEBOOK=2"], ["NOTEBOOK=2", "02_any_function"]),
    ],
)
def test_what_the_notebook_does_not_have_is_refused_before_anything_is_set_up(run, given, named):
    left, code, said = run(*given)
    assert (left, code) == ({}, 2)
    assert unnamed(said, *named) == []
