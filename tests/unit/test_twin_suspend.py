"""A local job is suspended and resumed, and a pod of it deleted, as by a patch and a kubectl delete on a cluster."""

import os
import signal
from datetime import UTC, datetime

import pytest

from tests.twin_jobs import until
from train_func.errors import JobNotFound

STAY = "import os, signal, time; signal.signal(signal.SIGTERM, lambda *_: os._exit({})); print('ready', flush=True)\n"
FOREVER = STAY.format(143) + "while True: time.sleep(60)"


def holds(jobs, kind):
    status = jobs.backend.job("job-a").status()
    return status.condition(kind) is not None


def started(jobs, lines):
    until(lambda: jobs.text() == ["ready"] * lines and holds(jobs, "Running"), f"{lines} starts")


def existing(jobs):
    return [pod for pod in jobs.backend.job("job-a").pods() if not pod.deleted]


def test_a_suspended_job_has_no_processes_and_a_resumed_one_has_new_pods(jobs):
    jobs.start(FOREVER)
    started(jobs, 2)
    first = jobs.backend.job("job-a").status()
    jobs.backend.job("job-a").suspend(True)
    until(lambda: holds(jobs, "Suspended") and not existing(jobs), "suspension")
    assert jobs.processes("job-a") == [jobs.controller()]
    assert [(pod.exit_code, pod.deleted) for pod in jobs.backend.job("job-a").pods()] == [(143, True)] * 2
    assert not (jobs.backend.job("job-a").status().finished or jobs.backend.job("job-a").status().interrupted)
    resumed = datetime.now(UTC)
    jobs.backend.job("job-a").suspend(False)
    started(jobs, 4)
    assert [pod.worker for pod in existing(jobs)] == [0, 1]
    assert first.start_time < resumed <= jobs.backend.job("job-a").status().start_time


def test_a_job_can_be_suspended_from_the_start(jobs):
    jobs.start("print('ran')", policy={"suspend": True})
    assert holds(jobs, "Suspended")
    assert jobs.backend.job("job-a").pods() == []
    assert jobs.backend.job("job-a").status().start_time is None
    jobs.backend.job("job-a").suspend(False)
    assert jobs.ended().condition("Succeeded") is not None
    assert jobs.text() == ["ran", "ran"]


def test_a_suspended_job_can_be_cancelled(jobs):
    jobs.start(FOREVER, policy={"suspend": True})
    jobs.backend.job("job-a").cancel()
    assert jobs.backend.job("job-a").status().condition("Failed").reason == "Cancelled"
    assert jobs.processes("job-a") == []


def test_only_a_job_with_a_running_controller_can_be_suspended(jobs):
    with pytest.raises(JobNotFound, match="this machine has no job 'job-a'"):
        jobs.backend.job("job-a").suspend(True)
    jobs.start(FOREVER)
    os.kill(jobs.controller(), signal.SIGKILL)
    until(lambda: jobs.backend.job("job-a").status().interrupted, "interruption")
    with pytest.raises(JobNotFound, match="job-a was interrupted and has no controller; submit the run again"):
        jobs.backend.job("job-a").suspend(True)


def test_a_deleted_pod_is_replaced_and_no_other(jobs):
    jobs.start(FOREVER, workers=3)
    started(jobs, 3)
    before = jobs.backend.job("job-a").pods()
    jobs.backend.job("job-a").delete_pod("job-a-worker-1")
    started(jobs, 4)
    *old, new = jobs.backend.job("job-a").pods()
    assert [pod.uid for pod in old] == [pod.uid for pod in before]
    assert [(pod.exit_code, pod.deleted) for pod in old] == [(None, False), (143, True), (None, False)]
    assert (new.worker, new.phase) == (1, "Running")


@pytest.mark.parametrize(("exit_code", "end"), [(0, "Succeeded"), (1, "Failed")])
def test_a_deleted_pod_that_ends_with_a_final_code_ends_the_job(jobs, exit_code, end):
    jobs.start(STAY.format(exit_code) + "while True: time.sleep(60)", workers=1)
    started(jobs, 1)
    jobs.backend.job("job-a").delete_pod("job-a-worker-0")
    assert jobs.ended().condition(end) is not None
    assert existing(jobs) == []


def test_only_a_pod_that_is_there_can_be_deleted(jobs):
    jobs.start(FOREVER)
    with pytest.raises(JobNotFound, match="no pod 'x' of job job-a runs; it has: job-a-worker-0, job-a-worker-1"):
        until(lambda: jobs.backend.job("job-a").delete_pod("x"), "refusal")
