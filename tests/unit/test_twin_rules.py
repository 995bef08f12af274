"""The operator's rules as a table: pods go in, conditions and restarts come out."""

from datetime import UTC, datetime

import pytest

from tests.messages import unnamed
from tests.twin_jobs import worker_manifest
from train_func.client.twin import rules
from train_func.client.twin.record import PodRecord
from train_func.client.twin.spec import Spec

T0 = "2026-01-01T00:00:00.000000Z"
T1 = "2026-01-01T00:00:01.000000Z"


def spec(**shape) -> Spec:
    return Spec.of(worker_manifest("pass", name="job-a", **shape))


def pod(worker: int, phase: str = "Running", exit_code: int | None = None) -> PodRecord:
    name, uid = f"job-a-worker-{worker}", f"uid-{worker}"
    made = PodRecord(name=name, uid=uid, worker=worker, created=T0, phase=phase)
    made.exit_code = exit_code
    return made


def conditions(status: rules.Status) -> list[tuple[str, str, str]]:
    return [(found["type"], found["status"], found["reason"]) for found in status["conditions"]]


def messages(status: rules.Status) -> dict[str, str]:
    return {found["type"]: found["message"] for found in status["conditions"]}


CREATED = ("Created", "True", "PyTorchJobCreated")
RUNNING = ("Running", "True", "PyTorchJobRunning")
RAN = ("Running", "False", "PyTorchJobRunning")
RESTARTING = ("Restarting", "True", "PyTorchJobRestarting")
SUCCEEDED = ("Succeeded", "True", "PyTorchJobSucceeded")
FAILED = ("Failed", "True", "PyTorchJobFailed")


def running(job: Spec) -> rules.Status:
    pods = [pod(worker) for worker in range(job.num_workers)]
    return rules.reconcile(job, rules.created(job, T0), pods, T0).status


def test_a_new_job_is_created_and_asks_for_its_pods():
    job = spec(workers=3)
    outcome = rules.reconcile(job, rules.created(job, T0), [], T1)
    assert outcome.create == [0, 1, 2]
    assert conditions(outcome.status) == [CREATED]
    assert outcome.status["startTime"] == T1
    assert outcome.status["replicaStatuses"] == {"Worker": {"active": 0, "succeeded": 0, "failed": 0}}


def test_one_running_worker_makes_the_job_running():
    job = spec()
    outcome = rules.reconcile(job, rules.created(job, T0), [pod(0), pod(1, "Pending")], T1)
    assert conditions(outcome.status) == [CREATED, RUNNING]
    assert outcome.create == outcome.delete == outcome.events == []


def test_looking_twice_changes_nothing():
    job = spec()
    status = running(job)
    again = rules.reconcile(job, status, [pod(0), pod(1)], T1)
    assert again.status == status


def test_an_elastic_job_succeeds_with_its_first_worker():
    job = spec(workers=3)
    outcome = rules.reconcile(job, running(job), [pod(0), pod(1, "Succeeded", 0), pod(2)], T1)
    assert conditions(outcome.status) == [CREATED, RAN, SUCCEEDED]
    assert outcome.status["completionTime"] == T1
    assert outcome.events == [("Normal", "PyTorchJobSucceeded", messages(outcome.status)["Succeeded"])]
    after = rules.reconcile(job, outcome.status, [pod(0, "Failed", 1), pod(1, "Succeeded", 0), pod(2)], T1)
    assert conditions(after.status) == conditions(outcome.status)
    assert after.status["replicaStatuses"] == {"Worker": {"active": 0, "succeeded": 3, "failed": 0}}
    assert after.delete == []


@pytest.mark.parametrize("exit_code", [128, 137, 143, 144, 255, None])
def test_a_retryable_exit_replaces_that_pod_alone(exit_code):
    job = spec()
    lost = pod(1, "Failed", exit_code)
    outcome = rules.reconcile(job, running(job), [pod(0), lost], T1)
    assert outcome.delete == [lost]
    assert conditions(outcome.status) == [CREATED, RESTARTING]
    assert [event[:2] for event in outcome.events] == [("Warning", "PyTorchJobRestarting")] * 2
    then = rules.reconcile(job, outcome.status, [pod(0)], T1)
    assert then.create == [1]
    assert conditions(then.status) == [CREATED, RUNNING]


@pytest.mark.parametrize("exit_code", [1, 65, 127])
def test_a_permanent_exit_fails_the_job_and_leaves_the_other_pods(exit_code):
    job = spec()
    outcome = rules.reconcile(job, running(job), [pod(0), pod(1, "Failed", exit_code)], T1)
    assert conditions(outcome.status) == [CREATED, RAN, FAILED]
    assert '"job-a"' in messages(outcome.status)["Failed"]
    assert "completionTime" not in outcome.status
    assert outcome.delete == outcome.create == []


def test_a_permanent_exit_beats_a_success_seen_together():
    job = spec()
    outcome = rules.reconcile(job, running(job), [pod(0, "Succeeded", 0), pod(1, "Failed", 1)], T1)
    assert [found[0] for found in conditions(outcome.status)] == ["Created", "Running", "Failed"]


def test_replaced_pods_do_not_count_for_a_backoff_limit():
    job = spec(policy={"backoffLimit": 1})
    outcome = rules.reconcile(job, running(job), [pod(0), pod(1, "Failed", 144)], T1)
    assert not rules.finished(outcome.status)


@pytest.mark.parametrize(("seconds", "fails"), [("0.999999", False), ("1.000000", True)])
def test_the_deadline_counts_from_the_start_of_the_job(seconds, fails):
    job = spec(policy={"activeDeadlineSeconds": 1})
    now = f"2026-01-01T00:00:0{seconds}Z"
    outcome = rules.reconcile(job, running(job), [pod(0), pod(1)], now)
    assert rules.finished(outcome.status) == fails
    if fails:
        assert unnamed(messages(outcome.status)["Failed"], "job-a", "specified deadline") == []
        assert outcome.status["completionTime"] == now


def deleting(worker: int, phase: str = "Running", exit_code: int | None = None) -> PodRecord:
    made = pod(worker, phase, exit_code)
    made.deleting = True
    return made


def test_a_running_pod_that_is_being_deleted_counts_as_failed():
    job = spec()
    outcome = rules.reconcile(job, running(job), [pod(0), deleting(1)], T1)
    assert conditions(outcome.status) == [CREATED, RESTARTING]
    assert outcome.status["replicaStatuses"] == {"Worker": {"active": 1, "succeeded": 0, "failed": 1}}
    assert outcome.create == outcome.delete == []
    later = rules.reconcile(job, outcome.status, [pod(0), deleting(1)], "2026-01-01T00:00:02.000000Z")
    assert later.status == outcome.status


@pytest.mark.parametrize(
    ("phase", "exit_code", "last"), [("Succeeded", 0, SUCCEEDED), ("Failed", 1, FAILED), ("Failed", 143, RESTARTING)]
)
def test_how_a_deleted_pod_ended_counts_as_if_it_had_ended_by_itself(phase, exit_code, last):
    job = spec()
    status = rules.reconcile(job, running(job), [pod(0), deleting(1)], T1).status
    assert conditions(rules.reconcile(job, status, [pod(0), deleting(1, phase, exit_code)], T1).status)[-1] == last


def test_a_finished_job_expires_at_its_completion_and_the_time_to_live():
    job = spec(policy={"ttlSecondsAfterFinished": 60})
    assert rules.expires(job, running(job)) is None
    done = rules.reconcile(job, running(job), [pod(0, "Succeeded", 0), pod(1)], T1).status
    assert rules.expires(job, done) == datetime(2026, 1, 1, 0, 1, 1, tzinfo=UTC)


def test_a_job_that_failed_by_a_permanent_exit_code_never_expires():
    job = spec(policy={"ttlSecondsAfterFinished": 0})
    failed = rules.reconcile(job, running(job), [pod(0), pod(1, "Failed", 65)], T1).status
    assert rules.expires(job, failed) is None


def test_the_environment_is_that_of_the_operator():
    assert spec(workers=3).operator_environment() == {
        "PYTHONUNBUFFERED": "1",
        "PET_NPROC_PER_NODE": "1",
        "PET_RDZV_ENDPOINT": "job-a-worker-0:23456",
        "PET_RDZV_BACKEND": "c10d",
        "PET_NNODES": "3:3",
        "PET_MAX_RESTARTS": "0",
        "PET_RDZV_ID": "job-a",
        "PET_RDZV_CONF": "join_timeout=900",
    }


def test_the_pods_have_the_operator_s_labels():
    labels = spec().labels(1)
    assert labels["training.kubeflow.org/replica-index"] == "1"
    assert labels["training.kubeflow.org/job-name"] == labels["train-func/run"] == "job-a"
    assert "training.kubeflow.org/job-role" not in labels
    assert spec().labels(0)["training.kubeflow.org/job-role"] == "master"
