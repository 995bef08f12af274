"""Who waits is told what keeps the news away, and what keeps workers from their store, and goes on waiting."""

import json

import pytest

from tests.messages import unnamed
from tests.recorded_jobs import Clock, RecordedJob, a_record, looked
from train_func import events
from train_func.client.diagnose import JobMonitor, patiently
from train_func.errors import InvalidInput

AWAY = InvalidInput("context 'c' cannot be reached: nothing listens there", cause="cluster")
FORBIDDEN = InvalidInput("watch pods in namespace lab: forbidden: no; have this Role applied", cause="permission")
STARTS = events.line(events.WorkerStarts(worker=0, num_workers=1, pod="job-a-worker-0", pod_uid="uid"))
REFUSED = "s3://b/runs, server http://no-store:9000 [10.96.0.1]: connection refused: nothing listens there"


def waits(seconds, number, fault=REFUSED, is_unknown_host=False):
    message = f"put of 'a/probe-{number}' in {fault} (tried 4 times in 1.{number % 10} s). See whether it is up"
    return events.line(
        events.WaitsForStore(seconds_left=seconds, fault=fault, is_unknown_host=is_unknown_host, message=message)
    )


@pytest.fixture
def job():
    """A job that runs."""
    job = RecordedJob("evicted")
    (pod,) = job.recorded["pods"]
    del pod["metadata"]["deletionTimestamp"]
    pod["status"]["conditions"] = []
    return job


def test_a_job_that_runs_is_no_matter(job):
    assert looked(job)[0] == []


@pytest.mark.parametrize("error", [AWAY, FORBIDDEN], ids=["away", "forbidden"])
def test_that_nothing_is_heard_is_told_once_and_that_it_is_over_and_again(job, error):
    clock = Clock()
    monitor, told = JobMonitor(a_record(), job, clock), []
    for job.silence in [None, error, error, None, None, error, None]:
        told += monitor.look()
        clock.seconds += 2
        assert [diagnosis.cause for diagnosis in monitor.current] == ([error.cause] if job.silence else [])
        assert monitor.failure() is None
    first, over, again, over_again = told
    assert str(error) in str(first)
    assert first.cause == error.cause
    assert (over.cause, over.remedy) == ("cluster", "")
    assert str(error) not in str(over)
    assert (again, over_again) == (first, over)


def test_what_was_seen_last_is_no_reason_to_give_up_while_the_cluster_is_away(job):
    lost = RecordedJob("secret_missing")
    lost.silence = AWAY
    assert looked(lost)[2] is None


def test_a_backend_that_raises_instead_is_told_the_same_way_unless_it_does_from_the_start(job, monkeypatch):
    clock = Clock()
    monitor = JobMonitor(a_record(), job, clock)
    monitor.look()

    def refuses():
        raise FORBIDDEN

    monkeypatch.setattr(job, "pods", refuses)
    clock.seconds += 2
    assert [diagnosis.cause for diagnosis in monitor.look()] == ["permission"]
    with pytest.raises(InvalidInput) as raised:
        JobMonitor(a_record(), job, clock).look()
    assert raised.value is FORBIDDEN


@pytest.mark.parametrize("error", [AWAY, FORBIDDEN], ids=["away", "forbidden"])
def test_the_state_before_stands_while_a_place_does_not_say_it(error):
    def asked():
        raise error

    assert patiently(asked, "Running") == "Running"


def test_a_fault_of_the_asking_is_raised():
    def asked():
        raise InvalidInput("namespace='x': there is none")

    with pytest.raises(InvalidInput, match="there is none"):
        patiently(asked, "Running")


def test_a_worker_that_waits_for_its_store_is_told_once_with_the_address(job):
    clock = Clock()
    monitor, told = JobMonitor(a_record(), job, clock), []
    for number in range(60):
        job.last_line = STARTS if number < 5 else waits(60 - number, number)
        told += monitor.look()
        clock.seconds += 1
    (diagnosis,) = told
    assert diagnosis.cause == "storage"
    assert unnamed(diagnosis.message, "worker 0", REFUSED) == []
    assert "s3_endpoint=..." in diagnosis.remedy
    assert monitor.failure() is None


def test_a_worker_that_has_gone_on_is_no_longer_asked(job, monkeypatch):
    asked = []
    monkeypatch.setattr(job, "last_lines", lambda pods: asked.append(pods) or {pods[0].uid: job.last_line})
    job.last_line = "worker 0 meets the others at job-a-worker-0:23456"
    told, monitor, _ = looked(job, 60)
    assert (told, monitor.current) == ([], [])
    assert len(asked) == 1


def test_a_store_whose_name_only_the_workers_do_not_know_is_given_up_within_half_a_minute(job):
    why = "s3://b/runs, server http://nosuch:9000: no name server knows the server's name"
    job.last_line = waits(50, 1, why, is_unknown_host=True)
    told, monitor, given_up = looked(job, 40)
    assert 15 <= given_up <= 30
    assert monitor.failure().cause == "storage"
    assert "http://nosuch:9000" in str(monitor.failure())
    assert "s3_endpoint=..." in str(monitor.failure())
    assert len(told) == 2


def without_the_store(job, ends, attempt=None):
    """The job after so many ends of its worker, told by the operator as often as it likes to."""
    said = json.dumps({"format": 1, "attempt": attempt, "exit_code": 144, "cause": "storage", "message": "unreachable"})
    about = {"kind": "Pod", "name": "job-a-worker-0"}
    event = {"metadata": {}, "type": "Normal", "count": 1}
    for number in range(ends + 1):
        began, ended = (f"2026-11-21T14:5{number}:{second:02}Z" for second in (1, 58))
        made = {**event, "reason": "Created", "firstTimestamp": began, "lastTimestamp": began}
        job.recorded["events"].append({**made, "involvedObject": {**about, "uid": f"uid-{number}"}})
        if number < ends:
            words = f"Error pod job-a-worker-0 container pytorch exitCode: 144 terminated message: {said}"
            of_job = {"kind": "PyTorchJob", "name": "job-a"}
            told = {**event, "reason": "Error", "message": words, "involvedObject": of_job, "count": 5}
            job.recorded["events"].append({**told, "firstTimestamp": ended, "lastTimestamp": ended})
    job.last_line = waits(50, 1)
    return job


def test_a_worker_that_has_ended_twice_without_its_store_and_waits_again_is_given_up(job):
    _, monitor, given_up = looked(without_the_store(job, ends=2), 10)
    assert given_up <= 6
    assert monitor.failure().cause == "storage"
    assert unnamed(monitor.failure(), "worker 0", "http://no-store:9000") == []


def test_one_end_without_the_store_is_waited_through_however_often_it_is_told(job):
    assert looked(without_the_store(job, ends=1), 20)[2] is None


def test_ends_of_attempts_that_had_begun_are_left_to_max_attempts(job):
    assert looked(without_the_store(job, ends=3, attempt=1), 20)[2] is None


def test_a_store_that_is_there_again_after_two_ends_is_no_trouble(job):
    without_the_store(job, ends=2).last_line = "worker 0 meets the others at job-a-worker-0:23456"
    assert looked(job, 20)[2] is None
