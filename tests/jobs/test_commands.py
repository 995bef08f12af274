"""The commands on a run do from a terminal what its Job does in a notebook."""

import json
import subprocess
import sys

import pytest

from tests.jobs.functions import fine_tunes, waits_for_a_file
from tests.messages import unnamed
from train_func import Local, submit


def command(*arguments):
    line = [sys.executable, "-m", "train_func", *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=300, check=False)


def test_a_run_is_followed_read_and_fetched_from_a_terminal(home, a_run, tmp_path):
    job = submit(fine_tunes, a_run(workers=1), on=Local())
    assert command("watch", job.name).returncode == 0
    result = command("result", job.name)
    assert json.loads(result.stdout) == job.result()
    assert command("logs", job.name, "--worker", "0").stdout.splitlines() == list(job.logs(worker=0))
    fetched = command("fetch", job.name, "--to", str(tmp_path / "fetched"))
    assert fetched.stdout == f"{tmp_path / 'fetched'}\n"
    assert (tmp_path / "fetched" / "model.safetensors").is_file()
    too_late = command("cancel", job.name)
    assert too_late.returncode == 0
    assert unnamed(too_late.stdout, job.name, "had ended") == []
    assert job.state == "Succeeded"


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
    assert command("watch", job.name).returncode == 1
