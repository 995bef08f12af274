"""Real notebooks as make run has them: pictures are kept, what was done is attached, an error is the typed one."""

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.contracts.test_notebooks import ROOT
from tests.local_jobs import until
from tests.notebooks.executing import errors, home_in, pictures, texts
from tests.tiny_model import write_tiny_model
from train_func import attach
from train_func.client.stored_run import ENDED

SMALL = {"EPOCHS": "2", "ROWS": "101", "WORKERS": "1"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Runs a notebook as make run does, in a checkout of its own; its process. ``start`` does not wait for it."""
    checkout = tmp_path_factory.mktemp("checkout")
    shutil.copytree(ROOT / "notebooks", checkout / "notebooks")
    (checkout / "infra").mkdir()
    shutil.copy(ROOT / "infra/run_notebook.py", checkout / "infra")
    (checkout / ".venv").symlink_to(ROOT / ".venv")

    def start(notebook, **given):
        kept = {name: value for name, value in os.environ.items() if name != "TRAIN_FUNC_STORE"}
        environment = {**kept, "TRAIN_FUNC_HOME": str(checkout / "home"), "PYTHONPATH": str(ROOT)}
        environment |= {"NOTEBOOK": notebook, **given}
        environment["TMPDIR"] = str(checkout)
        # The tests may run in the background of a shell, which has its programs ignore what Ctrl-C sends.
        program = [checkout / ".venv/bin/python", checkout / "infra/run_notebook.py", "run", "NOTEBOOK", *given]
        command = ["env", "--default-signal=INT", *program]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, env=environment, start_new_session=True, **pipes)

    def run(notebook, **given):
        process = start(notebook, **given)
        said = process.communicate(timeout=500)
        return subprocess.CompletedProcess(process.args, process.returncode, *said)

    run.checkout, run.start = checkout, start
    return run


@pytest.fixture(scope="module")
def first(run):
    done = run("02_any_function", **SMALL)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.slow
def test_what_was_done_already_is_attached_and_says_so(run, first):
    second = run("02_any_function", **SMALL)
    assert second.returncode == 0, second.stderr
    assert "already done" not in first.stdout
    assert "already done" in second.stdout
    (one,) = {line for done in (first, second) for line in re.findall(r"^accuracy: .*", done.stdout, re.M)}
    assert one
    assert len(list((run.checkout / "home/store").glob("train-func-*/attempts/*"))) == 1
    assert pictures(executed_by(run, second)), second.stdout


def executed_by(run, done):
    (name,) = re.findall(r"the executed notebook: (build/\S+\.ipynb) ", done.stdout)
    return run.checkout / name


def test_notebook_02_shows_what_its_function_printed_returned_drew_and_saved_and_a_mistake_with_its_line(run, first):
    executed = executed_by(run, first)
    shown = texts(executed)
    assert pictures(executed)
    assert "accuracy: 0." in shown
    assert "0.weight: (64, 2)" in shown
    assert 'line 6: `return {"mean": points.maen()}`' in shown
    assert errors(executed) == []


@pytest.mark.slow
@pytest.mark.parametrize("notebook", ["02_any_function", "01_finetune", "04_imdb"])
def test_what_a_cell_raises_is_told_as_the_typed_error_it_is(run, notebook):
    done = run(notebook, WORKERS="0", EPOCHS="-1")
    assert done.returncode == 1
    assert done.stderr.startswith("InvalidInput: ")
    assert "workers=0" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_what_a_step_of_a_pipeline_raises_is_told_as_the_typed_error_it_is(run):
    model = str(write_tiny_model(run.checkout / "model"))
    done = run("06_pipeline", MODEL=model, WORKERS="1", SAMPLES="101", PROMOTE_AS="Bad Name")
    assert done.returncode == 1
    assert done.stderr.startswith("InvalidInput: ")
    assert "'Bad Name'" in done.stderr
    assert "Traceback" not in done.stderr
    (log,) = re.findall(r"^what the steps say: (\S+)$", done.stdout, re.M)
    assert "Traceback" in Path(log).read_text()


@pytest.mark.slow
def test_an_interrupt_while_a_step_trains_names_the_job_that_goes_on(run):
    process = run.start("06_pipeline", WORKERS="1", BATCH_SIZE="2")  # so many steps that it trains long enough
    submitted = (re.match(r"(\S+-[0-9a-f]{12}): submitted", line) for line in process.stdout)
    name = next(filter(None, submitted))[1]
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=100)
    assert process.returncode == 130
    assert f"make cancel JOB={name} stops it" in said
    with home_in(run.checkout):
        job = attach(name)
        assert job.state not in ENDED
        job.cancel()
        until(lambda: job.state in ENDED, "the end of the job")
