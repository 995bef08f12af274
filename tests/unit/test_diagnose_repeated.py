"""An end that the operator tells again and again is one end; only so many pods that end the same way are too many."""

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.recorded_jobs import Clock, RecordedJob, a_record, looked
from train_func.client.diagnose import JobMonitor, explain
from train_func.storage import open_store


def ended_so_often(name, reason, pods, times=0):
    """The recorded job after the ends of its first pods, each end repeated by the operator's event."""
    job = RecordedJob(name)
    made = sorted(event["lastTimestamp"] for event in job.recorded["events"] if event["reason"] == "Created")
    (event,) = (found for found in job.recorded["events"] if found["reason"] == reason)
    event |= {"count": times or 2 * pods, "lastTimestamp": made[pods][:-3] + f"{int(made[pods][-3:-1]) - 1:02}Z"}
    job.recorded["events"] = [
        event,
        *(e for e in job.recorded["events"] if e["reason"] == "Created" and e["lastTimestamp"] <= made[pods]),
    ]
    return job


ENDS = [("out_of_memory", "OOMKilled"), ("start_error", "StartError")]


@pytest.mark.parametrize(("name", "reason"), ENDS)
def test_one_end_that_the_operator_tells_seven_times_is_one_end(name, reason):
    told, _, given_up = looked(ended_so_often(name, reason, pods=1, times=7))
    assert given_up is None
    assert len(told) == 1


@pytest.mark.parametrize(("name", "reason"), ENDS)
def test_an_end_is_told_once_while_its_event_comes_again_and_again(name, reason):
    job = ended_so_often(name, reason, pods=1, times=1)
    clock = Clock()
    monitor = JobMonitor(a_record(), job, clock)
    told = monitor.look()
    for times in range(2, 8):
        clock.seconds += 1
        job.recorded["events"] = ended_so_often(name, reason, pods=1, times=times).recorded["events"]
        told += monitor.look()
    job.recorded["events"] = ended_so_often(name, reason, pods=2).recorded["events"]
    clock.seconds += 1
    assert (len(told), len(monitor.look()), monitor.failure()) == (1, 1, None)


@pytest.mark.parametrize(("name", "reason"), ENDS)
def test_the_fourth_pod_that_ends_the_same_way_is_one_too_many(name, reason):
    assert looked(ended_so_often(name, reason, pods=3))[2] is None
    assert looked(ended_so_often(name, reason, pods=4))[2] is not None


def test_a_run_that_may_have_more_attempts_is_given_up_for_its_memory_only_after_those():
    job = ended_so_often("out_of_memory", "OOMKilled", pods=5)
    clock = Clock()
    monitor = JobMonitor(a_record(max_attempts=6), job, clock)
    monitor.look()
    clock.seconds += 10
    monitor.look()
    assert monitor.failure() is None


@pytest.mark.parametrize(("pods", "given_up"), [(3, False), (4, True)])
def test_ends_that_quote_another_end_of_the_log_each_are_ends_of_the_same_way(pods, given_up):
    """A worker that is killed after its first line: the operator's events quote that line, with pod and time."""
    job = ended_so_often("out_of_memory", "OOMKilled", pods=pods)
    (event,) = (found for found in job.recorded["events"] if found["reason"] == "OOMKilled")
    made = sorted(found["lastTimestamp"] for found in job.recorded["events"] if found["reason"] == "Created")
    ends = [
        {**event, "count": 1, "firstTimestamp": at, "lastTimestamp": at, "message": f"{event['message']}starts at {at}"}
        for at in [*made[1:], event["lastTimestamp"]][:pods]
    ]
    assert len({end["message"] for end in ends}) == pods
    job.recorded["events"] = [*(found for found in job.recorded["events"] if found is not event), *ends]
    assert (looked(job)[2] is not None) is given_up


@pytest.mark.parametrize("is_earlier", [True, False])
def test_a_pod_that_had_gone_before_the_job_was_created_says_nothing_of_it(tmp_path, is_earlier):
    job = RecordedJob("exit_1")
    created, (pod,) = job.status().created, job.pods()
    gone = created + timedelta(hours=-1 if is_earlier else 1)
    job.pods = lambda: [replace(pod, uid="earlier", reason="OOMKilled", deleted=True, ended=gone), pod]
    store = open_store(f"file://{tmp_path / 'store'}")
    assert explain(a_record(), job, store, "attach(...)").cause == ("unknown" if is_earlier else "memory")
