"""infra/notebook.sh with real notebooks: pictures are kept, what was done is attached, an error is the typed one."""

import os
import re
import shutil
import subprocess

import pytest

from tests.contracts.test_notebooks import ROOT
from tests.notebooks.executing import pictures

SMALL = {"EPOCHS": "2", "ROWS": "101"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Runs a notebook as make run does, in a checkout of its own; returns the process."""
    checkout = tmp_path_factory.mktemp("checkout")
    shutil.copytree(ROOT / "notebooks", checkout / "notebooks")
    (checkout / "infra").mkdir()
    for script in ("notebook.sh", "notebook_parameters.py"):
        shutil.copy(ROOT / "infra" / script, checkout / "infra")
    (checkout / ".venv").symlink_to(ROOT / ".venv")

    def run(notebook, **given):
        kept = {name: value for name, value in os.environ.items() if name != "TRAIN_FUNC_STORE"}
        environment = {**kept, "TRAIN_FUNC_HOME": str(checkout / "home"), "PYTHONPATH": str(ROOT), **given}
        command = [checkout / "infra/notebook.sh", notebook]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)

    run.checkout = checkout
    return run


@pytest.fixture(scope="module")
def twice(run):
    return [run("02_any_function", **SMALL) for _ in range(2)]


def test_what_was_done_already_is_attached_and_says_so(run, twice):
    first, second = twice
    assert [first.returncode, second.returncode] == [0, 0], first.stderr + second.stderr
    assert "already done" not in first.stdout
    assert "already done" in second.stdout
    (one,) = {line for done in (first, second) for line in re.findall(r"^accuracy: .*", done.stdout, re.M)}
    assert one
    assert len(list((run.checkout / "home/store").glob("*/attempts/*"))) == 1


def test_each_executed_notebook_keeps_its_pictures(run, twice):
    for done in twice:
        (name,) = re.findall(r"the executed notebook: (build/\S+\.ipynb) ", done.stdout)
        assert pictures(run.checkout / name), name


@pytest.mark.parametrize("notebook", ["01_finetune", "02_any_function", "04_imdb"])
def test_what_a_cell_raises_is_told_as_the_typed_error_it_is(run, notebook):
    done = run(notebook, WORKERS="0", EPOCHS="-1")
    assert done.returncode == 1
    assert done.stderr.startswith("InvalidInput: ")
    assert "workers=0" in done.stderr
    assert "Traceback" not in done.stderr
