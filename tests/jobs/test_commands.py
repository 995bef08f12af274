"""The commands on a run do from a terminal what its Job does in a notebook."""

import importlib
import json
import subprocess
import sys

import pytest

from tests.jobs.functions import waits_for_a_file
from tests.messages import unnamed
from train_func import Local, Run, submit


def command(*arguments):
    line = [sys.executable, "-m", "train_func", *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.slow
def test_a_run_is_followed_and_cancelled_from_a_terminal(home, a_run, tmp_path):
    job = submit(waits_for_a_file, a_run(workers=1, parameters={"file": str(tmp_path / "never")}), on=Local())
    line = [sys.executable, "-m", "train_func", "logs", job.name, "--follow"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as follower:
        assert follower.stdout is not None
        assert any("] waiting" in told for told in follower.stdout)
        cancelled = command("cancel", job.name)
        assert cancelled.returncode == 0
        assert cancelled.stdout.startswith(f"{job.name}: cancelled")
        assert follower.wait(60) == 0
    assert job.state == "Cancelled"
    assert command("watch", job.name).returncode == 40


PROGRAM = """
from shapes import SCALE


def train_func(parameters):
    print("trains")
    return {"loss": parameters["lr"] * SCALE}


def fails(parameters):
    raise ValueError("no good")
"""


def test_a_function_of_a_file_is_submitted_from_a_terminal_as_its_module_submits_it(home, tmp_path, monkeypatch):
    (tmp_path / "shapes.py").write_text("SCALE = 2\n")
    (tmp_path / "program.py").write_text(PROGRAM)
    submits = ("submit", str(tmp_path / "program.py:train_func"), "--parameter", "lr=0.5", "words=[1]", "--name", "7a")
    refused = command(*submits)
    assert refused.returncode == 10
    assert unnamed(refused.stderr, "name='7a'") == []
    submits = (*submits[:-1], "a-7")
    done = command(*submits, "--wait", "--json")
    assert done.returncode == 0
    submission = json.loads(done.stdout)
    assert {*submission} == {"name", "state", "backend", "place", "attach"}
    monkeypatch.syspath_prepend(tmp_path)
    job = submit(
        importlib.import_module("program").train_func, Run(parameters={"lr": 0.5, "words": [1]}, name="a-7"), on=Local()
    )
    assert job.name == submission["name"]
    assert job.result() == {"loss": 1.0}
    assert command(*submits).stdout == f"{job.name}\n"


def test_a_script_learns_from_the_exit_code_that_the_function_is_to_be_fixed(home, tmp_path):
    (tmp_path / "shapes.py").write_text("SCALE = 2\n")
    (tmp_path / "program.py").write_text(PROGRAM)
    submits = ("submit", str(tmp_path / "program.py:fails"))
    watched = command(*submits, "--watch", "--json")
    events = [json.loads(line) for line in watched.stdout.splitlines()]
    assert (events[0]["event"], events[-1]["event"]) == ("Submitted", "End")
    assert (watched.returncode, events[-1]["cause"], events[-1]["exit_code"]) == (14, "code", 14)
    for arguments in (("wait", "fails"), ("result", "fails"), ("watch", "fails"), (*submits, "--wait")):
        done = command(*arguments)
        assert done.returncode == 14
        assert unnamed(done.stderr, "ValueError: no good", "program.py, line 11", "next: ") == []
