"""What a real job posts to a service, and keeps: a fault and an end are told once each, and the address nowhere.

The fault is a drill, whose report tells what it has cost.
"""

import json
from pathlib import Path

import pytest

from tests.api_servers import ApiServer, Authority, running
from tests.jobs.functions import tells_its_steps
from tests.messages import refuses, unnamed
from tests.webhook import SECRET, service
from train_func import Local, Run, SecretKey, submit

LIMIT = 240.0


@pytest.fixture
def backend():
    return Local(cpu=1, environment={"TRAIN_FUNC_WEBHOOK": SecretKey(secret="slack", key="url")})


@pytest.fixture
def without_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def files_with(text, folder):
    """The files below the folder, of any kind, that hold the text."""
    files = [path for path in Path(folder).rglob("*") if path.is_file()]
    assert files
    return [path for path in files if text.encode() in path.read_bytes()]


def test_a_job_whose_rank_is_killed_once_posts_a_restart_and_its_end(home, monkeypatch, without_proxy, backend):
    with service() as slack:
        monkeypatch.setenv("TRAIN_FUNC_WEBHOOK", slack.address)
        run = Run(workers=2, epochs=12, batch_size=8, micro_batch_size=4, parameters={"pause": 0.1}, checkpoint_every=1)
        job = submit(tells_its_steps, run, on=backend)
        report = job.drill("rank", rank=1, at_step=25)
        heard = []
        assert job.watch(on_alert=lambda alert: heard.append(alert.kind)) == "Succeeded", "\n".join(job.logs())
    assert report.name == job.name
    only_steps_since_the_checkpoint_are_done_again(report)
    with refuses(job.name, "Succeeded", "fresh=True"):
        job.drill("rank")
    restart, end = slack.posts
    assert (restart["alert"], end["alert"]) == ("restart", "succeeded")
    assert restart["run"] == end["run"] == job.name
    assert "rank 1 was killed by SIGKILL" in restart["text"]
    assert end["step"] == 60
    alerts = job.alerts()
    assert [(alert.kind, alert.message) for alert in alerts] == [
        (post["alert"], post["message"]) for post in slack.posts
    ]
    assert heard == [alert.kind for alert in alerts]
    assert not files_with(SECRET, home)
    assert not files_with(slack.address, home)


def only_steps_since_the_checkpoint_are_done_again(report):
    (recovery,) = report.recoveries
    assert 25 <= recovery.last_step < 60
    assert (recovery.attempt, recovery.next_attempt, recovery.workers) == (1, 2, 2)
    assert recovery.steps_lost == recovery.last_step - recovery.resumed_step >= 0
    assert recovery.first_step == recovery.last_step + 1
    assert (recovery.cause, recovery.has_right_cause) == ("killed", True)
    assert "rank 1" in recovery.message
    assert recovery.checkpoint


def test_a_job_posts_how_far_it_is_where_an_operator_takes_that(home, tmp_path, monkeypatch, without_proxy):
    authority, token, name = Authority(tmp_path), tmp_path / "token", "KUBEFLOW_TRAINER_SERVER"
    token.write_text("of the pod")
    monkeypatch.setenv(f"{name}_TOKEN", f"{token}")
    with running(ApiServer(authority.certificate("trainer"), authority.path)) as operator:
        pod = {f"{name}_URL": operator.url, f"{name}_CA_CERT": f"{authority.path}"}
        backend = Local(cpu=1, environment={**pod, f"{name}_TOKEN": SecretKey(secret="pod", key="token")})
        run = Run(epochs=2, batch_size=8, micro_batch_size=4, parameters={"pause": 0})
        job = submit(tells_its_steps, run, on=backend)
        assert job.wait() == "Succeeded", "\n".join(job.logs())
    assert {asked.token for asked in operator.asked} == {"of the pod"}
    *_, last = (json.loads(asked.body)["trainerStatus"] for asked in operator.asked)
    assert last["progressPercentage"] == 100
    assert {"loss", "rows_per_second"} <= {metric["name"] for metric in last["metrics"]}
    assert "was not sent" not in "\n".join(job.logs())


def returns_where_it_is():
    import os

    return {"has_address": "TRAIN_FUNC_WEBHOOK" in os.environ}


def test_a_service_that_never_answers_hinders_no_job(home, monkeypatch, without_proxy, backend):
    with service(None) as slack:
        monkeypatch.setenv("TRAIN_FUNC_WEBHOOK", slack.address)
        job = submit(returns_where_it_is, Run(), on=backend)
        assert job.result() == {"has_address": False}
        text = "\n".join(job.logs())
    assert [alert.kind for alert in job.alerts()] == ["succeeded"]
    assert text.count("an alert was not sent") == 1
    assert SECRET not in text


def finds_its_port_in_use():
    import os
    import socket

    import torch.distributed as dist

    if (os.environ["RANK"], os.environ["TRAIN_FUNC_ATTEMPT"]) == ("0", "1"):
        other = socket.socket()
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("", int(os.environ["MASTER_PORT"])))
        other.listen()
    dist.init_process_group("gloo")


def test_a_port_of_rank_0_that_is_in_use_is_told_as_its_own_error_and_tried_again(home):
    job = submit(finds_its_port_in_use, Run(workers=2), on=Local(cpu=1))
    assert job.wait(LIMIT) == "Succeeded", "\n".join(job.logs())
    restart, _ = job.alerts()
    assert unnamed(restart.message, "worker 0: rank 0 failed: DistNetworkError", "EADDRINUSE") == []
