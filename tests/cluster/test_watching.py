"""A client that follows a job sees every line once, whatever happens to pods, operator, API server or kernel."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.following import Followed, assert_whole, by_attempt, counts
from tests.cluster.kubectl import Kubectl, until
from tests.testbed import TESTBED
from train_func import Cluster, Run, attach, submit
from train_func.client.job import Job

API_SERVER = Path(os.environ.get("KUBECONFIG", "")).parent / "run/kube-apiserver.pid"  # as the testbed keeps it
LIMIT_SECONDS = 240.0
SMALL = {"cpu": "200m", "memory": "1Gi", "grace_seconds": 10}
KERNEL = """
import sys
from train_func import Cluster, attach
for line in attach(sys.argv[1], on=Cluster()).logs(follow=True):
    print(line, flush=True)
"""


@pytest.fixture
def counting(request: pytest.FixtureRequest) -> Iterator[Job]:
    """A job of two workers that count so far, 20 numbers a second; deleted afterwards."""
    run = Run(workers=2, parameters={"numbers": request.param, "pause": 0.05})
    job = submit(counts, run, on=Cluster(**SMALL), fresh=True)
    yield job
    job.delete()


def until_counted(followed: Followed, what: str, job: Job) -> None:
    until(lambda: followed.has(what), what, LIMIT_SECONDS, lambda: "\n".join([repr(job), *followed.lines[-20:]]))


@pytest.mark.alone
@pytest.mark.parametrize("counting", [400], indirect=True)
def test_a_deleted_pod_a_new_operator_and_a_new_kernel_lose_no_line(counting, admin: Kubectl, namespace: str):
    job, followed = counting, Followed(counting)
    followed.start()
    until_counted(followed, "count 1 50", job)
    pod = f"pod/{job.record.job_name}-worker-1"
    admin("delete", pod, f"--namespace={namespace}", "--wait=false")
    admin("delete", "pods", "--namespace=kubeflow", "--selector=control-plane=kubeflow-training-operator")
    until_counted(followed, "--- attempt 2, started again", job)
    until_counted(followed, "attempt 2 starts again; ", job)
    kernel = subprocess.Popen(
        [sys.executable, "-c", KERNEL, job.name], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    assert kernel.stdout is not None
    attached = kernel.stdout.read().splitlines()
    assert job.wait(LIMIT_SECONDS) == "Succeeded"
    followed.join(LIMIT_SECONDS)
    assert followed.error is None
    for lines in (followed.lines, attached, list(attach(job.name, on=Cluster()).logs())):
        assert_whole(job, lines)
        seen = by_attempt(lines)
        assert {place for place in seen if place[0] == 2} == {(2, 0), (2, 1)}
        assert all(f"count {worker} 399" in "\n".join(seen[2, worker]) for worker in (0, 1))
        assert len([text for text in seen[1, 1] if "count 1" in text]) > 50
    reasons = {event.reason for event in job.events()}
    assert reasons >= {"Scheduled", "Started", "SuccessfulCreatePod"}
    everything = list(job.logs())
    job.delete()
    assert by_attempt(list(job.logs())) == by_attempt(everything)  # now from the store alone


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.skipif(
    not (API_SERVER.is_file() and TESTBED.is_dir()), reason="the API server of this cluster is not ours to restart"
)
@pytest.mark.parametrize("counting", [800], indirect=True)
def test_an_api_server_that_starts_anew_in_mid_follow_loses_no_line(counting, object_store):
    if "127.0.0.1" in object_store.endpoint:
        pytest.skip("the way to the store leads through the API server")
    job, followed = counting, Followed(counting)
    followed.start()
    until_counted(followed, "count 1 50", job)
    os.kill(int(API_SERVER.read_text()), signal.SIGKILL)
    subprocess.run([TESTBED / "up"], check=True, capture_output=True, timeout=200)
    until_counted(followed, "count 0 799", job)
    assert job.wait(LIMIT_SECONDS) == "Succeeded"
    followed.join(LIMIT_SECONDS)
    assert followed.error is None
    assert_whole(job, followed.lines)
    assert {place[0] for place in by_attempt(followed.lines)} == {1}
