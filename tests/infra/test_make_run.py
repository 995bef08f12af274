"""make run: what is given reaches the notebook as it was written, what nothing takes is refused, a failure is told."""

import json
import os
import re
import sys

import pytest

from tests.infra.conftest import ROOT
from tests.messages import unnamed
from tests.stored_runs import put_run
from train_func.run import Run
from train_func.storage import open_store

JOB = "reviews-0123456789ab"
PAPERMILL = """
import json, os
from pathlib import Path

class PapermillExecutionError(Exception):
    pass

def execute_notebook(notebook, executed, parameters, *, cwd, stdout_file, **options):
    variables = {name: os.environ[name] for name in ("TRAIN_FUNC_STORE", "TRAIN_FUNC_IMAGE") if name in os.environ}
    Path("ran").write_text(json.dumps([Path(notebook).stem, parameters, variables]))
    Path(executed).write_text(os.environ.get("RAISES", ""))
    stdout_file.write(os.environ.get("PRINTS", "what a cell prints") + "\\n")
    if words := os.environ.get("RAISES"):
        error = PapermillExecutionError(words)
        error.ename, _, error.evalue = words.partition(": ")
        raise error
"""


@pytest.fixture
def run(make, checkout, tmp_path):
    """Runs make run with a papermill that only keeps what it is told: (what it was told, process)."""
    (tmp_path / "papermill.py").write_text(PAPERMILL)

    def run(*given, **exported):
        done = make("run", *given, **{"PYTHONPATH": f"{tmp_path}:{ROOT}", **exported})
        told = json.loads(path.read_text()) if (path := checkout / "ran").exists() else None
        return told, done

    run.checkout = checkout
    return run


def notebooks(checkout):
    return sorted((checkout / "build").glob("*.ipynb"))


def test_values_arrive_as_they_were_written(run):
    (_, told, _), _ = run('TEXT=guest\'s "words"', "LABEL=1", "WORKERS=3", "LEARNING_RATE=1e-3", "LABELS=not good,good")
    assert told == {
        "text": 'guest\'s "words"',
        "label": "1",
        "workers": 3,
        "learning_rate": 1e-3,
        "labels": "not good,good",
    }


def write_notebook(checkout, **own):
    """Notebook 09_own, whose second cell has these parameters."""
    cell = {"cell_type": "code", "metadata": {"tags": ["parameters"]}, "source": ""}
    cell["source"] = "\n".join(f"{name} = {value!r}  # what it is" for name, value in own.items())
    (checkout / "notebooks/09_own.ipynb").write_text(json.dumps({"cells": [{**cell, "metadata": {}}, cell]}))


def test_files_are_named_from_where_make_runs_and_ids_stay(run):
    (run.checkout / "my reviews.csv").touch()
    (run.checkout / "folder").mkdir()
    given = {"dataset": "my reviews.csv", "photos": "folder"}
    ids = {"model": "yelp_review_full", "texts": "owner/name", "rows": "s3://bucket/rows.csv"}
    write_notebook(run.checkout, **dict.fromkeys(given | ids, "data/own"))
    (_, told, _), _ = run("NOTEBOOK=09_own", *(f"{name.upper()}={value}" for name, value in (given | ids).items()))
    assert told == {name: str(run.checkout / value) for name, value in given.items()} | ids


def test_any_notebook_takes_the_parameters_of_its_own_first_cell(run):
    write_notebook(run.checkout, where="Local", photos="data/photos", rate=0.5, colour=False)
    (run.checkout / "mine").mkdir()
    told, done = run("NOTEBOOK=09_own", "PHOTOS=mine", "RATE=1e-3", "COLOUR=yes")
    assert told == ["09_own", {"photos": str(run.checkout / "mine"), "rate": 1e-3, "colour": True}, {}]
    assert (run.checkout / "build/09_own.ipynb").exists()
    assert "09_own" in done.stdout.splitlines()[0]


def test_what_the_shell_has_exported_for_other_programs_is_no_parameter(run):
    exported = {"NOTEBOOK": "04_imdb", "ROWS": "7", "SEED": "9", "STORE": "file:///other", "IMAGE": "other"}
    assert run(NOTEBOOK="02_any_function")[0] == ["01_finetune", {}, {}]
    assert run("NOTEBOOK=02_any_function", **exported)[0] == ["02_any_function", {}, {}]
    told, _ = run("NOTEBOOK=02_any_function", "ROWS=8", "STORE=file:///s", **exported)
    assert told == ["02_any_function", {"rows": 8}, {"TRAIN_FUNC_STORE": "file:///s"}]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["MODLE=x"], ["MODLE", "did you mean MODEL?", "LEARNING_RATE"]),
        (["NOTEBOOK=02_any_function", "MODEL=x"], ["MODEL", "02_any_function", "ROWS"]),
        (["ROWZ=1", "WORKRES=2"], ["ROWZ", "WORKRES", "did you mean WORKERS?"]),
        (["NOTEBOOK=2"], ["NOTEBOOK=2", "02_any_function"]),
        (["FRESH=perhaps"], ["FRESH=perhaps", "1", "0"]),
        (["WHERE=here"], ["WHERE=here", "Local", "Cluster"]),
    ],
)
def test_what_the_notebook_does_not_take_is_refused_before_anything_is_set_up(run, given, named):
    told, done = run(*given)
    assert (told, done.returncode) == (None, 2)
    assert not (run.checkout / "set-up").exists()
    assert unnamed(done.stderr, *named) == []


def test_where_python3_is_old_a_newer_one_is_taken(run, tmp_path):
    programs = {"python3": "exit 1", "python3.14": f'exec {sys.executable} "$@"'}
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    told, done = run("ROWZ=1", PATH=f"{tmp_path}:{os.environ['PATH']}", PYTHON="")
    assert (told, done.returncode) == (None, 2)
    assert unnamed(done.stderr, "ROWZ", "WORKERS") == []


def test_what_an_error_calls_a_field_is_told_as_make_takes_it(run):
    _, done = run("LABEL=stars", RAISES="InvalidInput: label='stars': no such column")
    assert unnamed(done.stderr, "label= is LABEL=...") == []


def test_the_progress_of_a_job_which_the_notebook_has_in_its_panel_is_printed_too(run, tmp_path):
    (home := tmp_path / "home").mkdir()
    record = put_run(open_store((home / "store").as_uri()), Run(name="reviews"))
    submitted = f"{record.name}: submitted, 1 worker"
    _, done = run("STORE=" + (home / "store").as_uri(), PRINTS=submitted, TRAIN_FUNC_HOME=str(home))
    lines = [line for line in done.stdout.splitlines() if line.startswith(f"{record.name}: ")]
    assert lines[0] == submitted
    assert "Succeeded" in "\n".join(lines[1:])


def test_a_mirror_of_pypi_is_no_misspelt_parameter(make):
    names = ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL")
    done = make("known", *(f"{name}=https://mirror.example/simple" for name in names))
    assert done.returncode == 0, done.stderr


def test_only_what_make_run_and_the_notebook_take_is_listed(run):
    _, done = run("LABLE=topic")
    assert unnamed(done.stderr, "LABLE", "did you mean LABEL?", "WORKERS", "STORE") == []
    assert [name for name in ("BUILDER", "TESTS", "TRAIN_FUNC_TEST_MINIO_IMAGE") if name in done.stderr] == []


@pytest.mark.parametrize("is_submitted", [True, False])
def test_what_is_refused_before_a_job_was_submitted_leaves_nothing(run, is_submitted):
    prints = f"{JOB}: submitted, 2 workers" if is_submitted else "rows: 7, 8"
    _, done = run(RAISES="InvalidInput: label='stars': no such column", PRINTS=prints)
    named = [run.checkout / path for path in re.findall(r"build/\S+\.ipynb", done.stderr)]
    assert named == notebooks(run.checkout)
    assert len(list((run.checkout / "build").iterdir())) == (2 if is_submitted else 0)


def test_each_execution_keeps_its_notebook_and_the_fixed_name_is_the_last_that_succeeded(run):
    last = run.checkout / "build/01_finetune.ipynb"
    run(RAISES="KeyError: 'stars'")
    (failed,) = notebooks(run.checkout)
    assert "KeyError: 'stars'" in failed.with_suffix(".log").read_text()
    assert not last.exists()
    _, first = run()
    good = last.resolve()
    run(RAISES="KeyError: 'stars'")
    assert last.resolve() == good
    assert good.name in first.stdout
    _, second = run()
    assert last.resolve().name in second.stdout
    assert last.resolve() != good
    assert len([path for path in notebooks(run.checkout) if path != last]) == 4
    assert len(list((run.checkout / "build").glob("*.log"))) == 2


def test_the_way_to_stop_the_last_job_is_told_as_a_shell_needs_it(run):
    first = f"model-first-{'0' * 12}"
    said = f"{first}: submitted, 2 workers\n{first}: in place\n{JOB}: submitted, 2 workers"
    given = ("WHERE=Cluster", "STORE=s3://bucket/runs")
    _, done = run(*given, RAISES=f"JobFailed: {JOB} hangs: fix it, or job.cancel()", PRINTS=said)
    assert f" make cancel WHERE=Cluster STORE=s3://bucket/runs JOB={JOB} stops it" in done.stderr


@pytest.mark.parametrize(
    ("given", "is_fresh"),
    [((), False), (("FRESH=1",), True), (("NOTEBOOK=07_spot",), True), (("NOTEBOOK=07_spot", "FRESH=0"), False)],
)
def test_the_command_that_shows_the_job_again_is_one_that_is_not_refused_while_it_runs(run, given, is_fresh):
    _, done = run(*given, RAISES=f"JobFailed: {JOB} hangs: or job.cancel()", PRINTS=f"{JOB}: submitted, 2 workers")
    assert "the same parameters" in done.stderr
    assert ("FRESH=0" in done.stderr) is is_fresh


def test_an_error_of_ours_is_told_without_the_rest(run):
    _, done = run(RAISES="InvalidInput: workers=0: a whole number is expected")
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == "InvalidInput: workers=0: a whole number is expected"
    assert "Traceback" not in done.stderr
