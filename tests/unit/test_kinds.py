"""What the operators say of pods that the cluster refuses to create reaches the diagnosis, whatever the words name."""

import pytest

from tests.recorded_jobs import RecordedJob, looked
from train_func.client.diagnose.reasons import refusals
from train_func.client.kinds import KINDS, reading

TIMES = "2026-11-21T14:10:39Z", "2026-11-21T14:10:40Z", "2026-11-21T14:10:41Z"
REFUSED = {"PyTorchJob": ("PyTorchJob/job-a", "FailedCreatePod"), "TrainJob": ("Job/job-a-node-0", "FailedCreate")}
MADE = {"PyTorchJob": "SuccessfulCreatePod", "TrainJob": "SuccessfulCreate"}
POD = {"PyTorchJob": "job-a-worker-{}", "TrainJob": "job-a-node-0-{}-x7k2p"}
WEBHOOK = 'Error creating: admission webhook "pods.lab.example" denied the request: no team label'


def event(kind, message, *, made=False, time=TIMES[0]):
    about, reason = REFUSED[kind]
    object_kind, _, name = about.partition("/")
    found = {
        "type": "Normal" if made else "Warning",
        "reason": MADE[kind] if made else reason,
        "message": message,
        "lastTimestamp": time,
        "involvedObject": {"kind": object_kind, "name": name},
        "metadata": {"creationTimestamp": time},
    }
    return KINDS[kind].understood(reading.event(found))


def created(kind, worker, time):
    return event(kind, f"Created pod: {POD[kind].format(worker)}", made=True, time=time)


kinds = pytest.mark.parametrize("kind", KINDS)


@kinds
def test_a_refusal_that_names_no_pod_concerns_the_workers_that_have_none(kind):
    events = [created(kind, 1, TIMES[1]), event(kind, WEBHOOK)]
    (found,) = refusals([], events, 3)
    assert found.cause == "permission"
    assert found.permanent
    assert "no team label" in found.message
    assert found.message.startswith("workers 0, 2 ")
    assert refusals([], [event(kind, WEBHOOK), *(created(kind, worker, TIMES[1]) for worker in range(3))], 3) == []


@kinds
def test_a_refusal_after_the_first_pods_were_made_is_not_hidden_by_them(kind):
    (found,) = refusals([], [created(kind, 0, TIMES[0]), event(kind, WEBHOOK, time=TIMES[2])], 1)
    assert "no team label" in found.message


def test_a_job_whose_pods_a_webhook_refuses_without_naming_them_is_given_up_with_its_words():
    job = RecordedJob("pod_security")
    for found in job.recorded["events"]:
        found["message"] = WEBHOOK if found["reason"] == "FailedCreatePod" else found["message"]
    _, monitor, given_up = looked(job, 40, workers=2)
    assert given_up is not None
    assert "no team label" in str(monitor.failure())
