"""A node is drained, freezes, or goes silent: the cause and its remedy are named, and no step is done twice."""

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.hanging import SLEEPS, hanging, runs
from tests.cluster.kubectl import Kubectl, until
from tests.cluster.stepping import LIMIT_SECONDS, ONCE, SMALL, Listening, training
from tests.cluster.testbed_machine import KUBELET, PRETENDING, REASON, frozen, pid_in, supervisor_of, uid
from tests.s3_servers import s3_server
from tests.testbed import TESTBED
from train_func import Cluster

PRETENDED = TESTBED / "fake-nodes"
NAMED_SECONDS = 90.0  # a cluster waits 50 s for a sign of a node
pytestmark = [pytest.mark.alone, pytest.mark.slow]


def test_workers_evicted_from_a_drained_node_go_on_when_it_takes_pods_again(namespace: str, admin: Kubectl):
    (node,) = (item["metadata"]["name"] for item in admin.json("get", "nodes")["items"])
    with training() as found:
        found.until_step(12)
        try:
            drain = ("drain", node, "--force", "--delete-emptydir-data", f"--pod-{found.selector.removeprefix('--')}")
            admin(*drain, "--timeout=60s", seconds=90)
            told = found.until_heard("no node takes it")
            assert (told.cause, told.permanent) == ("scheduling", False)
        finally:
            admin("uncordon", node)
        found.succeeds()
        assert found.numbers() == ONCE


@pytest.fixture
def store_outside(admin: Kubectl, namespace: str, tmp_path: Path) -> Iterator[Cluster]:
    """A backend with a store that is no pod: a Service leads to no pod of a node that does not answer."""
    nodes = admin.json("get", "nodes")["items"]
    address = next(a["address"] for a in nodes[0]["status"]["addresses"] if a["type"] == "InternalIP")
    name = f"outside-{secrets.token_hex(3)}"
    with s3_server("minio", tmp_path, host=address) as server, pytest.MonkeyPatch.context() as patch:
        keys = {"rootUser": server.access_key, "rootPassword": server.secret_key}
        metadata = {"name": name, "namespace": namespace}
        admin.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": keys})
        for variable, value in server.environment.items():
            patch.setenv(variable, value)
        yield Cluster(**SMALL, store=f"s3://{server.bucket}/runs", store_secret=name, s3_endpoint=server.endpoint)


@pytest.mark.skipif(not KUBELET.is_file(), reason=REASON)
def test_a_training_outlives_a_kubelet_that_stops_and_its_node_is_named(store_outside: Cluster):
    with training(store_outside, pause=2.5) as found:
        found.until_step(3)
        with frozen(pid_in(KUBELET)) as begun:
            told = found.until_heard("does not answer", NAMED_SECONDS)
            told_after = time.time() - begun
            assert told.cause == "cluster"
            assert "workers 0, 1" in told.message
            assert f"delete pod {found.pod(0)} {found.pod(1)}" in told.remedy
        found.succeeds()
        during = [at for at in found.steps()[1].values() if begun < at < begun + told_after]
        assert len(during) > 10
        assert found.numbers() == ONCE


@pytest.mark.skipif(not KUBELET.is_file(), reason=REASON)
def test_workers_that_ended_while_the_kubelet_was_stopped_are_replaced_when_it_is_back(
    store_outside: Cluster, admin: Kubectl, namespace: str
):
    with training(store_outside) as found:
        found.until_step(12)
        supervisor = supervisor_of(admin, namespace, found, 1)
        with frozen(pid_in(KUBELET)):
            os.kill(supervisor, signal.SIGTERM)
            found.until_heard("does not answer", NAMED_SECONDS)
        found.succeeds()
        assert found.numbers() == ONCE


@pytest.fixture
def pretended_node(admin: Kubectl) -> Iterator[str]:
    """A node whose pods only pretend to run, kept by a process of its own; gone afterwards."""
    if not PRETENDED.exists():
        pytest.skip("this cluster has no pretended nodes")
    environment = {**os.environ, "KUBECONFIG": str(admin.kubeconfig)}
    subprocess.run([PRETENDED, "1"], check=True, capture_output=True, timeout=120, env=environment)
    yield "fake-0"
    admin("delete", "nodes", "--selector=type=kwok")


def on_a_pretended_node(job, pod, container):
    """It tolerates the silence of its node for a moment only."""
    runs(SLEEPS)(job, pod, container)
    unreachable = [
        {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}
        for key in ("unreachable", "not-ready")
    ]
    pod["nodeSelector"] = {"type": "kwok"}
    pod["tolerations"] = [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}, *unreachable]


def test_a_pretended_node_that_goes_silent_is_named_with_a_remedy_that_works(
    pretended_node: str, admin: Kubectl, namespace: str
):
    found = hanging("silent", on_a_pretended_node, grace_seconds=5)
    job, pod = found.job, f"{found.job.record.job_name}-worker-0"
    try:
        until(lambda: job.state == "Running", "it runs", LIMIT_SECONDS, lambda: repr(job.events()))
        listening = Listening(job)
        with frozen(pid_in(PRETENDING)):
            told = listening.until_heard(f"node {pretended_node} does not answer", NAMED_SECONDS)
            assert told.cause == "cluster"
            assert f"delete pod {pod} --grace-period=0 --force" in told.remedy
            before = uid(admin, namespace, pod)
            admin("delete", "pod", pod, f"--namespace={namespace}", "--grace-period=0", "--force")
            until(lambda: uid(admin, namespace, pod) not in ("", before), "a new pod", LIMIT_SECONDS)
        until(lambda: job.state == "Running", "it runs again", LIMIT_SECONDS, listening.evidence)
        listening.stop()
    finally:
        job.delete()
