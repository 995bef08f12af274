"""Faults that are caused on purpose in real jobs: what they cost is measured, and the right cause is told.

test_alerts has a rank that is killed; notebook 07 compares the weights with those of an undisturbed training.
"""

import json
import socket
import subprocess
import sys

import pytest

from tests.jobs.functions import tells_its_steps, waits_for_a_file
from tests.local_jobs import until
from tests.messages import refuses
from train_func import Local, Run, submit

SHAPE = {"batch_size": 8, "micro_batch_size": 4}  # five steps an epoch
HANG_SECONDS = 3.0


@pytest.fixture
def training(home):
    """Submits a training of so many epochs, and deletes its job afterwards."""
    jobs = []

    def start(epochs, *, pause=0.05, **fields):
        given = {**SHAPE, "workers": 2, "checkpoint_every": 1, "parameters": {"pause": pause}, **fields}
        jobs.append(submit(tells_its_steps, Run(epochs=epochs, **given), on=Local()))
        return jobs[-1]

    yield start
    for job in jobs:
        job.delete()


def test_a_campaign_and_a_terminal_cause_one_fault_after_the_other_and_all_workers_move_within_one_training(
    training, tmp_path
):
    job = training(1000, pause=0.2, hang_after=HANG_SECONDS)
    campaign = tmp_path / "campaign.json"
    faults = [
        {"kill": "hang", "rank": 0, "at_step": 20},
        {"kill": "store", "seconds": 2, "at_step": 35},
        {"kill": "pod", "worker": 1, "signal": "TERM"},
        {"kill": "worker", "worker": 0},
    ]
    campaign.write_text(json.dumps({"faults": faults}))
    report = job.drill(campaign)
    hang, store, stopped, killed = report.recoveries
    assert (hang.cause, hang.has_right_cause) == ("hang", True)
    assert hang.seconds > HANG_SECONDS / 2
    assert (store.next_attempt, store.steps_lost) == (None, 0)
    assert (stopped.cause, stopped.steps_lost) == ("preemption", 0)
    assert (killed.cause, killed.has_right_cause) == ("killed", True)
    assert [recovery.attempt for recovery in report.recoveries] == [1, 2, 2, 3]
    assert killed.next_attempt == 4
    with refuses("at_step", 1, job.name):
        job.drill("rank", at_step=1)
    with refuses("rank", 2, "0 to 1"):
        job.drill("rank", rank=2)
    with refuses("worker", 2, "0 to 1"):
        job.drill("pod", worker=2)
    line = [sys.executable, "-m", "train_func", "drill", job.name, "--kill", "rank", "--signal", "TERM", "--json"]
    picture = tmp_path / "drill.svg"
    done = subprocess.run([*line, "--picture", picture], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    (told,) = json.loads(done.stdout)["recoveries"]
    assert (told["attempt"], told["steps_lost"]) == (4, 0)
    assert picture.read_text().startswith("<svg")
    moves = job.move(to={"zone": "b"}, timeout=120)
    there = f"{socket.gethostname()} (zone=b)"
    assert [(move.worker, move.to_node, move.num_steps_repeated) for move in moves] == [(0, there, 0), (1, there, 0)]
    assert moves[0].pause == moves[1].pause > 0


@pytest.mark.slow
def test_of_an_elastic_group_the_others_go_on_without_the_worker_that_is_killed(training):
    report = training(400, min_workers=1).drill("worker", worker=1)
    (recovery,) = report.recoveries
    assert (recovery.workers, recovery.cause) == (1, "killed")


def test_a_function_that_tells_no_steps_is_drilled_by_its_attempts(home, tmp_path, monkeypatch):
    monkeypatch.setattr("train_func.client.drill.course.SILENT_SECONDS", 1.0)  # for a step that never comes
    job = submit(waits_for_a_file, Run(workers=2, parameters={"file": str(tmp_path / "never")}), on=Local())
    try:
        with refuses("store", job.name, "session.report"):
            job.drill("store")
        until(lambda: sum("waiting" in line for line in job.logs()) == 2, "both ranks")
        (recovery,) = job.drill("rank").recoveries
    finally:
        job.delete()
    assert (recovery.attempt, recovery.next_attempt) == (1, 2)
    assert (recovery.last_step, recovery.first_step, recovery.steps_lost) == (None, None, None)
    assert recovery.seconds > 0
    assert recovery.cause == "killed"
