"""How far a training is, is posted where Kubeflow Trainer takes that, seldom, once, and at no cost to the training."""

import json
import threading
import time
from types import SimpleNamespace

import pytest

from tests.api_servers import Answer, ApiServer, Authority, running
from tests.messages import unnamed
from train_func.wire import events
from train_func.worker.environment import StatusServer
from train_func.worker.rank import reporting
from train_func.worker.supervisor.alerts.alerter import SEND_SECONDS, Alerter
from train_func.worker.supervisor.alerts.trainjob_status import INTERVAL

PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/lab/trainjobs/a-run/status"
TOKEN = "eyJCANARY5e1f0c9b"
SECONDS = 10.0  # for what takes milliseconds on a machine that is not busy


@pytest.fixture
def operator(tmp_path):
    """The server of the operator, with an authority of its own; ``posted`` is set by every request."""
    authority = Authority(tmp_path)
    with running(ApiServer(authority.certificate("trainer"), authority.path)) as server:
        server.posted, server.status = threading.Event(), 200
        server.answer = lambda asked: (server.posted.set(), Answer(server.status))[1]
        yield server


@pytest.fixture
def pod(operator, tmp_path):
    """What the operator puts into the pod of a TrainJob."""
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    return StatusServer(f"{operator.url}{PATH}", tmp_path / "ca.pem", tmp_path / "token")


@pytest.fixture
def said(monkeypatch):
    """What the worker says."""
    said = []
    monkeypatch.setattr(reporting, "_sink", [said.append])
    return said


def alerter(pod):
    return Alerter(SimpleNamespace(webhook="", run_name="a-run", status_server=pod))


def progress(step, *, num_steps=1000, seconds_left=60.4, **values):
    values = {"loss": 0.5, "rows_per_second": 8, "epoch": 1, **values}
    return events.StepProgress(step=step, num_steps=num_steps, seconds_left=seconds_left, **values)


def statuses(operator):
    return [json.loads(asked.body)["trainerStatus"] for asked in operator.asked]


def metrics_of(status):
    return {metric["name"]: metric["value"] for metric in status["metrics"]}


def test_the_newest_progress_is_posted_and_at_the_end_the_result(operator, pod, said):
    worker = alerter(pod)
    worker.hear(progress(1))
    assert operator.posted.wait(SECONDS)
    begun = time.monotonic()
    for step in range(2, 999):
        worker.hear(progress(step))
    worker.hear(last := progress(999, loss=0.25))
    worker.hear(events.Evaluated(step=999, epoch=1, metrics={"accuracy": 0.875}))
    if time.monotonic() - begun < INTERVAL / 2:
        assert len(operator.asked) == 1  # within the interval no other is posted
    worker.flush(SECONDS)
    pod.token.write_text("another")  # as the cluster replaces it
    worker.succeed({"accuracy": 0.9, "labels": ["a"]})
    worker.flush(SECONDS)
    assert [(asked.method, asked.path) for asked in operator.asked] == [("POST", PATH)] * 3
    assert [asked.token for asked in operator.asked] == [TOKEN, TOKEN, "another"]
    first, before, end = statuses(operator)
    assert (first["progressPercentage"], before["progressPercentage"], end["progressPercentage"]) == (0, 99, 100)
    assert (first["estimatedRemainingSeconds"], end["estimatedRemainingSeconds"]) == (60, 0)
    assert first["lastUpdatedTime"] < last.time <= before["lastUpdatedTime"] < end["lastUpdatedTime"]
    assert metrics_of(before) | {"epoch": ""} == {
        "loss": "0.25",
        "rows_per_second": "8",
        "epoch": "",
        "eval_accuracy": "0.875",
    }
    assert metrics_of(end)["accuracy"] == "0.9"
    assert not [event for event in said if isinstance(event, events.Note)]


def test_a_status_keeps_to_what_the_operator_takes(operator, pod, said):
    worker = alerter(pod)
    metrics = {"text": "a", "done": True, "": 1, "of " + "a" * 80: float("nan"), **{f"m{n}": n for n in range(300)}}
    worker.hear(progress(5, num_steps=2**62, seconds_left=1e30))
    worker.hear(events.Reported(step=5, metrics=metrics))
    worker.flush(SECONDS)
    status = statuses(operator)[-1]
    assert (status["progressPercentage"], status["estimatedRemainingSeconds"]) == (0, 2**31 - 1)
    assert len(status["metrics"]) == 256
    assert all(1 <= len(text) <= 64 for metric in status["metrics"] for text in metric.values())
    assert "nan" in metrics_of(status).values()
    assert not {"text", "done", ""} & {*metrics_of(status)}


def test_a_job_that_tells_no_number_of_steps_posts_nothing(operator, pod, said):
    worker = alerter(pod)
    worker.hear(events.Reported(step=5, metrics={"loss": 0.5}))
    worker.hear(events.Evaluated(step=5, epoch=1, metrics={"loss": 0.5}))
    worker.succeed({"loss": 0.5})
    worker.flush(SECONDS)
    assert operator.asked == []


@pytest.mark.parametrize("fault", ["refused", "another authority", "no token", "no server"])
def test_a_server_that_is_no_help_costs_no_time_and_is_told_once(operator, pod, said, tmp_path, fault):
    server, expected = pod, "cannot be reached"
    match fault:
        case "refused":
            operator.status, expected = 403, "403"
        case "another authority":
            (tmp_path / "other").mkdir()
            server = StatusServer(pod.address, Authority(tmp_path / "other").path, pod.token)
            expected = "SSLCertVerificationError"
        case "no token":
            pod.token.unlink()
            expected = f"{pod.token}"
        case "no server":
            server = StatusServer(f"https://127.0.0.1:9{PATH}", pod.authority, pod.token)
    begun = time.monotonic()
    worker = alerter(server)
    for step in range(1, 4):
        worker.hear(progress(step))
        worker.flush(SECONDS)
    worker.succeed({})
    worker.flush(SECONDS)
    assert time.monotonic() - begun < SEND_SECONDS
    (note,) = [event for event in said if isinstance(event, events.Note)]
    assert unnamed(note.text, "progress of the TrainJob", "KUBEFLOW_TRAINER_SERVER_URL", expected) == []
    assert TOKEN not in repr(said)
