"""A pod of a local job is deleted, as by kubectl delete on a cluster."""

import os
import signal

import pytest

from tests.messages import unnamed
from tests.twin_jobs import until
from train_func.errors import JobNotFound

STAY = "import os, signal, time; signal.signal(signal.SIGTERM, lambda *_: os._exit({})); print('ready', flush=True)\n"
FOREVER = STAY.format(143) + "while True: time.sleep(60)"


def holds(jobs, kind):
    status = jobs.backend.job("job-a").status()
    return status.condition(kind) is not None


def started(jobs, lines):
    def run():
        phases = {pod.phase for pod in existing(jobs)}
        return jobs.text() == ["ready"] * lines and holds(jobs, "Running") and phases == {"Running"}

    until(run, f"{lines} starts")


def existing(jobs):
    return [pod for pod in jobs.backend.job("job-a").pods() if not pod.deleted]


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


def test_only_a_job_with_a_running_controller_loses_a_pod(jobs):
    with pytest.raises(JobNotFound, match="job-a"):
        jobs.backend.job("job-a").delete_pod("job-a-worker-0")
    jobs.start(FOREVER)
    os.kill(jobs.controller(), signal.SIGKILL)
    until(lambda: jobs.backend.job("job-a").status().interrupted, "interruption")
    with pytest.raises(JobNotFound, match="job-a"):
        jobs.backend.job("job-a").delete_pod("job-a-worker-0")


def test_only_a_pod_that_is_there_can_be_deleted(jobs):
    jobs.start(FOREVER)
    with pytest.raises(JobNotFound) as refused:
        until(lambda: jobs.backend.job("job-a").delete_pod("x"), "refusal")
    assert unnamed(refused.value, "'x'", "job-a-worker-0", "job-a-worker-1") == []
