"""make run: what is given reaches the notebook as it was written, and a failure is told in its own words."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.messages import unnamed

ROOT = Path(__file__).parents[2]
JOB = "model-reviews-0123456789ab"
STUB = """#!/usr/bin/env bash
printf '%s\\0' "$@" >"$TOLD"
printf '%s' "$CODE" >"$2"
echo 'what a cell prints' >/dev/stdout
[[ -z ${PRINTS:-} ]] || echo "$PRINTS"
echo "$SAYS" >&2
exit "$CODE"
"""


@pytest.fixture
def run(tmp_path):
    """Runs a copy of infra/notebook.sh beside a papermill that only keeps its arguments: (arguments, process)."""
    checkout = tmp_path / "checkout"
    (checkout / ".venv/bin").mkdir(parents=True)
    (checkout / ".venv/bin/python").symlink_to(sys.executable)
    (checkout / "infra").mkdir()
    for script in ("notebook.sh", "notebook_parameters.py"):
        shutil.copy(ROOT / "infra" / script, checkout / "infra")
    shutil.copytree(ROOT / "notebooks", checkout / "notebooks")
    stub = checkout / ".venv/bin/papermill"
    stub.write_text(STUB)
    stub.chmod(stub.stat().st_mode | stat.S_IXUSR)

    def run(*notebook, says="", code=0, **given):
        told = tmp_path / "told"
        environment = {"PATH": os.environ["PATH"], "TOLD": str(told), "SAYS": says, "CODE": str(code), **given}
        done = subprocess.run(
            [checkout / "infra/notebook.sh", *notebook],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        arguments = told.read_text().split("\0") if told.exists() else []
        pairs = {arguments[i + 1]: arguments[i + 2] for i, word in enumerate(arguments) if word in ("-p", "-r")}
        return pairs, done

    run.checkout = checkout
    return run


def notebooks(checkout):
    return sorted((checkout / "build").glob("*.ipynb"))


def test_values_arrive_as_they_were_written(run):
    written = {"TEXT": 'guest\'s "words" $HOME', "LABELS": "not good,good", "WORKERS": "3"}
    pairs, done = run(**written)
    assert done.returncode == 0
    assert pairs == {"text": written["TEXT"], "labels": written["LABELS"], "workers": "3"}


@pytest.mark.parametrize(
    ("given", "arrives"),
    [
        ("my reviews.csv", "{root}/my reviews.csv"),
        ("folder", "{root}/folder"),
        ("missing.csv", "{root}/missing.csv"),
        ("yelp_review_full", "yelp_review_full"),
        ("owner/name", "owner/name"),
        ("s3://bucket/rows.csv", "s3://bucket/rows.csv"),
        ("package://some_package/rows.csv", "package://some_package/rows.csv"),
    ],
)
def test_files_are_named_from_where_make_runs_and_ids_stay(run, given, arrives):
    (run.checkout / "my reviews.csv").touch()
    (run.checkout / "folder").mkdir()
    pairs, _ = run(DATASET=given)
    assert pairs == {"dataset": arrives.format(root=run.checkout)}


def test_a_text_stays_a_text_whatever_it_looks_like(run):
    """papermill makes numbers of what looks like one, unless it is told not to; a column may be called 1."""
    run(TEXT="1", WORKERS="1")
    arguments = (run.checkout.parent / "told").read_text().split("\0")
    assert arguments[arguments.index("text") - 1] == "-r"
    assert arguments[arguments.index("workers") - 1] == "-p"


def test_any_notebook_takes_the_parameters_of_its_own_first_cell(run):
    own = {"where": "Local", "photos": "data/photos", "rate": 0.5, "colour": False}
    cell = {"cell_type": "code", "metadata": {"tags": ["parameters"]}, "source": ""}
    cell["source"] = "\n".join(f"{name} = {value!r}  # what it is" for name, value in own.items())
    (run.checkout / "notebooks/09_own.ipynb").write_text(json.dumps({"cells": [{**cell, "metadata": {}}, cell]}))
    (run.checkout / "mine").mkdir()
    given = {"PHOTOS": "mine", "RATE": "1e-3", "COLOUR": "yes", "MODEL": "of another notebook"}
    pairs, done = run("09_own", **given)
    assert pairs == {"photos": str(run.checkout / "mine"), "rate": "1e-3", "colour": "True"}
    assert (run.checkout / "build/09_own.ipynb").exists()
    assert "09_own" in done.stdout.splitlines()[0]


def test_a_notebook_that_is_not_there_is_told_with_those_that_are(run):
    pairs, done = run("09_own")
    assert (pairs, done.returncode) == ({}, 1)
    assert unnamed(done.stderr, "NOTEBOOK=09_own", "01_finetune") == []


@pytest.mark.parametrize(
    ("given", "arrives"), [("1", "True"), ("yes", "True"), ("True", "True"), ("0", "False"), ("no", "False")]
)
def test_fresh_is_a_yes_or_a_no(run, given, arrives):
    pairs, done = run(FRESH=given)
    assert (pairs, done.returncode) == ({"fresh": arrives}, 0)


def test_fresh_that_is_neither_is_refused(run):
    pairs, done = run(FRESH="perhaps")
    assert (pairs, done.returncode) == ({}, 1)
    assert unnamed(done.stderr, "FRESH=perhaps", 1, 0) == []


def test_a_file_that_takes_the_output_keeps_its_first_lines(run, tmp_path):
    script = run.checkout / "infra/notebook.sh"
    environment = {"PATH": os.environ["PATH"], "TOLD": str(tmp_path / "told"), "SAYS": "", "CODE": "0"}
    with (tmp_path / "log").open("w") as log:
        subprocess.run([script], env=environment, stdout=log, timeout=300, check=True)
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines[0].startswith("notebook 01_finetune runs")
    assert lines[1] == "what a cell prints"
    assert [run.checkout / path for path in re.findall(r"build/[^ )]+", lines[2])] == notebooks(run.checkout)


def test_an_error_of_ours_is_told_without_the_rest(run):
    _, done = run(code=1, says="Traceback\n  a frame\nInvalidInput: workers=0: a whole number is expected")
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["InvalidInput: workers=0: a whole number is expected"]


@pytest.mark.parametrize("is_submitted", [True, False])
def test_what_is_refused_before_a_job_was_submitted_leaves_nothing(run, is_submitted):
    prints = f"{JOB}: submitted, 2 workers" if is_submitted else "rows: 7, 8"
    _, done = run(code=1, says="InvalidInput: label='stars': no such column", PRINTS=prints)
    named = [run.checkout / path for path in re.findall(r"build/\S+\.ipynb", done.stderr)]
    assert named == notebooks(run.checkout)
    assert len(list((run.checkout / "build").iterdir())) == (2 if is_submitted else 0)


def test_each_execution_keeps_its_notebook_and_the_fixed_name_is_the_last_that_succeeded(run):
    last = run.checkout / "build/01_finetune.ipynb"
    run(code=1)
    assert [path.read_text() for path in notebooks(run.checkout)] == ["1"]
    assert not last.exists()
    _, first = run()
    good = last.resolve()
    run(code=2)
    assert last.resolve() == good
    assert good.name in first.stdout
    _, second = run()
    assert last.resolve().name in second.stdout
    assert last.resolve() != good
    assert sorted(path.read_text() for path in notebooks(run.checkout) if path != last) == ["0", "0", "1", "2"]


def test_of_several_jobs_the_last_is_the_one_to_stop(run):
    first = f"model-first-{'0' * 12}"
    said = f"{first}: submitted, 2 workers\n{first}: in place\n{JOB}: submitted, 2 workers"
    _, done = run(code=1, says=f"JobFailed: {JOB} hangs: fix it, or job.cancel()", PRINTS=said)
    assert done.stderr.splitlines()[1].endswith(f" make cancel JOB={JOB}")


def test_the_way_to_stop_a_job_is_told_as_a_shell_needs_it(run):
    given = {"WHERE": "Cluster", "STORE": "s3://bucket/runs"}
    said = f"{JOB}: submitted, 2 workers"
    _, done = run(code=1, says=f"JobFailed: {JOB} hangs: fix it, or job.cancel()", PRINTS=said, **given)
    assert f"cancel() is: make cancel WHERE=Cluster STORE=s3://bucket/runs JOB={JOB}" in done.stderr
