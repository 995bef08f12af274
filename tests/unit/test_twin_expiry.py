"""A finished local job is gone after its time to live, without a process that waits for it."""

import json

import pytest

from tests.twin_jobs import until
from train_func.errors import JobNotFound

LIVES = {"ttlSecondsAfterFinished": 1}


def age(jobs, name="job-a"):
    """As if the job had ended long ago."""
    path = jobs.home / "jobs" / name / "status.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "completionTime": "2001-01-01T00:00:00.000000Z"}))


def test_an_expired_job_is_absent_and_its_folder_gone(jobs):
    jobs.start("print('ran')")
    jobs.ended()
    assert jobs.text() == ["ran", "ran"]
    age(jobs)
    assert jobs.backend.job("job-a").status() is None
    assert jobs.backend.job("job-a").pods() == jobs.backend.job("job-a").events() == jobs.text() == []
    assert not (jobs.home / "jobs/job-a").exists()
    with pytest.raises(JobNotFound):
        jobs.backend.job("job-a").cancel()
    jobs.backend.job("job-a").delete()


def test_a_job_that_expired_while_the_machine_was_off_is_gone_for_the_next_reader(jobs):
    jobs.start("pass")  # with the day to live that every job has
    jobs.ended()
    assert jobs.backend.job("job-a").status().finished
    age(jobs)
    assert jobs.backend.job("job-a").pods() == []
    assert not (jobs.home / "jobs/job-a").exists()


def test_the_next_job_clears_away_what_has_expired(jobs):
    jobs.start("pass", name="job-b")
    jobs.ended("job-b")
    age(jobs, "job-b")
    jobs.start("pass")
    assert not (jobs.home / "jobs/job-b").exists()


def test_an_expired_job_can_be_started_anew_under_its_name(jobs):
    jobs.start("print('first')")
    jobs.ended()
    age(jobs)
    jobs.start("print('second')")
    assert jobs.ended().condition("Succeeded") is not None
    assert jobs.text() == ["second", "second"]


def test_workers_that_are_still_at_work_when_the_job_expires_are_ended(jobs):
    code = (
        "import os, pathlib, signal, time\nready = pathlib.Path(os.environ['TRAIN_FUNC_CACHE_DIR'], 'ready')\n"
        "if int(os.environ['TRAIN_FUNC_WORKER']):\n"
        "    signal.signal(signal.SIGTERM, lambda *_: (print('asked', flush=True), os._exit(143)))\n"
        "    print('ready', flush=True); ready.touch(); time.sleep(600)\n"
        "while not ready.exists(): time.sleep(0.01)"
    )
    jobs.start(code, policy=LIVES)
    lines = jobs.backend.job("job-a").logs(follow=True)
    assert [line.text for line in lines] == ["ready", "asked"]
    until(lambda: not jobs.processes("job-a"), "end of all")
    assert jobs.backend.job("job-a").status() is None
    assert jobs.backend.job("job-a").pods() == []


def test_a_job_that_failed_by_a_permanent_exit_code_stays_as_on_a_cluster(jobs):
    jobs.start("import sys; sys.exit(1)", policy={"ttlSecondsAfterFinished": 0})
    jobs.ended()
    assert jobs.moment("completionTime") is None
    assert jobs.backend.job("job-a").status().condition("Failed") is not None


def test_a_running_job_does_not_expire(jobs):
    jobs.start("import time; time.sleep(600)", policy={"ttlSecondsAfterFinished": 0}, grace=1)
    until(lambda: jobs.backend.job("job-a").status().condition("Running"), "start")
    assert jobs.backend.job("job-a").status() is not None


def test_a_time_to_live_of_0_takes_the_job_away_at_once(jobs):
    jobs.start("pass", policy={"ttlSecondsAfterFinished": 0})
    until(lambda: jobs.backend.job("job-a").status() is None, "expiry")
