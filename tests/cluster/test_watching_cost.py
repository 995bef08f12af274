"""What it costs to watch a job of many pods that change all the time: three watches, few logs, hardly any processor."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.following import counts
from tests.cluster.kubectl import Kubectl, until
from tests.testbed import TESTBED
from tests.tiny_model import write_tiny_model
from train_func import Cluster, Run, TextClassification, submit
from train_func.client.job import Job

PRETENDED = TESTBED / "fake-nodes"
# Pods, and for how many seconds they are watched, first unmeasured and then measured.
FEW, MANY = (20, 5, 10), (200, 15, 30)
LIMIT_SECONDS = 300.0
MOST_CPU = 0.05  # of one core
WATCHES = {"watch pytorchjobs", "watch pods", "watch events"}
ROOT = Path(__file__).parents[2]


@pytest.fixture
def pretended_nodes(admin: Kubectl) -> Iterator[None]:
    """A node whose pods only pretend to run; gone afterwards, because others ask what nodes can hold."""
    if not PRETENDED.exists():
        pytest.skip("this cluster has no pretended nodes")
    environment = {**os.environ, "KUBECONFIG": str(admin.kubeconfig)}
    subprocess.run([PRETENDED, "1"], check=True, capture_output=True, timeout=120, env=environment)
    yield
    admin("delete", "nodes", "--selector=type=kwok")


@pytest.fixture
def large_job(pretended_nodes: None, tmp_path: Path, size: tuple[int, int, int]) -> Iterator[Job]:
    rows = "".join(f"a sentence with the number {number},{number % 2}\n" for number in range(40))
    (tmp_path / "rows.csv").write_text("text,label\n" + rows)
    model = str(write_tiny_model(tmp_path / "tiny"))
    run = Run(
        task=TextClassification(model=model, dataset=str(tmp_path / "rows.csv")),
        workers=size[0],
        batch_size=size[0],
        parameters={"numbers": 1, "pause": 1},
    )
    backend = Cluster(cpu="100m", memory="1Gi", node_selector={"type": "kwok"}, tolerations=[{"operator": "Exists"}])
    job = submit(counts, run, on=backend)
    yield job
    job.delete()


@pytest.mark.alone
@pytest.mark.parametrize("size", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
def test_a_job_of_changing_pods_is_watched_by_three_watches_and_little_else(
    large_job, admin: Kubectl, namespace: str, size, capsys
):
    num_pods, *seconds = size
    name = large_job.record.job_name
    until(lambda: num_running(admin, namespace, name) == num_pods, "all pods run", LIMIT_SECONDS)
    environment = {**os.environ, "KUBECONFIG": str(admin.kubeconfig)}
    command = [sys.executable, str(Path(__file__).with_name("changing_pods.py")), namespace, name]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as changing:
        assert changing.stdout is not None
        assert changing.stdout.readline().strip() == "round 1"
        command = [sys.executable, "-m", "tests.cluster.watching_process", large_job.name, *map(str, seconds)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False, cwd=ROOT)
        changing.terminate()
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    with capsys.disabled():
        print(f"\nwatching {num_pods} changing pods: {found}")
    assert found["pods"] == num_pods
    assert {kind: num for kind, num in found["asked_at_first"].items() if kind in WATCHES} == dict.fromkeys(WATCHES, 1)
    assert not WATCHES & set(found["asked_meanwhile"]), "a watch was begun anew"
    assert found["asked_meanwhile"].get("other", 0) <= 2
    assert found["connections"] <= len(WATCHES) + 16 + 2
    assert found["cpu"] < MOST_CPU


def num_running(admin: Kubectl, namespace: str, name: str) -> int:
    selector = f"--selector=training.kubeflow.org/job-name={name}"
    phases = admin("get", "pods", f"--namespace={namespace}", selector, "--output=jsonpath={.items[*].status.phase}")
    return phases.split().count("Running")
