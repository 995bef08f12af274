"""What seldom befalls a job, provoked for real: a full disk, a denying policy, a store that only pods do not reach."""

import contextlib
import ipaddress
import json
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.cluster import restricted_pod
from tests.cluster.hanging import SLEEPS, Hanging, hanging, runs, wait_for_all
from tests.cluster.kubectl import Kubectl, until
from tests.cluster.training_operator import PROBE
from train_func import Cluster, InvalidInput, Run

NAMED_SECONDS = 120.0  # until a diagnosis is told
LIMIT_SECONDS = 150.0  # the kubelet measures volumes once a minute
DENIED = "no team label"
FILLS_ITS_DISK = """
import time
with open('/workspace/large', 'wb') as file:
    file.write(bytes(60 << 20))
time.sleep(600)
"""


def over_ephemeral(job, pod, container):
    """As with a namespace's LimitRange."""
    container["command"] = ["python", "-c", FILLS_ITS_DISK]
    container["resources"]["limits"]["ephemeral-storage"] = "20Mi"


@pytest.fixture
def jobs() -> Iterator[list[Hanging]]:
    """Deleted afterwards."""
    made: list[Hanging] = []
    yield made
    for found in made:
        found.job.delete()


@contextlib.contextmanager
def waited_for(jobs: list[Hanging]) -> Iterator[None]:
    """A client waits for them until everything expected was seen; then they are deleted."""
    waiting = threading.Thread(target=wait_for_all, args=(dict.fromkeys(jobs, LIMIT_SECONDS),))
    waiting.start()
    try:
        yield
    finally:
        for found in jobs:
            found.job.delete()
        waiting.join()


def seconds_until_told(found: Hanging, words: str, since: datetime) -> float:
    """From ``since`` by the cluster's clock, which has whole seconds."""
    told = until(lambda: [when for when, said in found.told if words in said], words, evidence=lambda: str(found.told))
    return told[0] - (time.monotonic() - found.begun) + (datetime.now(UTC) - since).total_seconds()


@pytest.mark.slow
def test_a_worker_that_fills_its_disk_is_told_which_and_what_to_raise(jobs):
    jobs.append(hanging("over-volume", runs(FILLS_ITS_DISK), disk="20Mi", grace_seconds=1))
    jobs.append(hanging("over-ephemeral", over_ephemeral, grace_seconds=1))
    volume, ephemeral = jobs
    with waited_for(jobs):
        when = [until(lambda job=found: evicted_at(job), "it is evicted", LIMIT_SECONDS) for found in jobs]
        assert seconds_until_told(volume, '"20Mi"', when[0]) < NAMED_SECONDS
        assert seconds_until_told(ephemeral, "containers 20Mi", when[1]) < NAMED_SECONDS
    assert "raise disk=..." in volume.told[0][1]
    assert "limit for ephemeral-storage" in ephemeral.told[0][1]


def evicted_at(found: Hanging) -> datetime | None:
    return next((event.time for event in found.job.events() if event.reason == "Evicted"), None)


@contextlib.contextmanager
def denying(admin: Kubectl, namespace: str, group: str, kind: dict[str, Any], resource: str) -> Iterator[None]:
    """A policy of the API server that refuses every ``kind`` that is created in the namespace."""
    name = f"{namespace}-{resource}"
    rules = [{"apiGroups": [group], "apiVersions": ["*"], "operations": ["CREATE"], "resources": [resource]}]
    about: dict[str, Any] = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": name}}
    no = {"expression": "false", "message": DENIED}
    policy = {"failurePolicy": "Fail", "matchConstraints": {"resourceRules": rules}, "validations": [no]}
    here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    binding = {"policyName": name, "validationActions": ["Deny"], "matchResources": here}

    def holds() -> bool:
        create = ("create", "--dry-run=server", f"--namespace={namespace}", "--filename=-")
        return DENIED in admin.run(*create, given=json.dumps(kind)).stderr

    admin.apply(
        {**about, "kind": "ValidatingAdmissionPolicy", "spec": policy},
        {**about, "kind": "ValidatingAdmissionPolicyBinding", "spec": binding},
    )
    try:
        until(holds, "the policy is in force")
        yield
    finally:
        admin("delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", name)
        until(lambda: not holds(), "the policy is gone")


def test_a_policy_that_denies_the_job_is_told_beforehand(admin, namespace):
    backend = Cluster(cpu="50m", memory="64Mi")
    with (
        denying(admin, namespace, "kubeflow.org", PROBE, "pytorchjobs"),
        pytest.raises(InvalidInput, match=f"denied request: {DENIED}; .*policy of") as caught,
    ):
        backend.check(Run(workers=1))
    assert len(caught.value.faults) == 1


@pytest.mark.slow
def test_a_policy_that_denies_the_pods_of_a_job_that_is_there_is_raised(jobs, admin, namespace):
    found = hanging("denied", runs(SLEEPS), grace_seconds=1)
    jobs.append(found)
    until(lambda: found.job.state == "Running", "the job runs")
    of_the_job = f"--selector=training.kubeflow.org/job-name={found.job.record.job_name}"
    with denying(admin, namespace, "", restricted_pod.pod("none", "denied", "true"), "pods"):
        admin("delete", "pods", f"--namespace={namespace}", of_the_job, "--wait=false")
        wait_for_all({found: NAMED_SECONDS})
    assert found.failure is not None, found.told
    assert found.failure.cause == "permission"
    assert f"denied request: {DENIED}" in str(found.failure)
    assert "policy of" in str(found.failure)


@pytest.fixture
def out_of_reach(admin: Kubectl, namespace: str) -> dict[str, str]:
    """Addresses at which pods find no store: no machine has the first, and no pod stands behind the second."""
    pod = admin.json("get", "pods", f"--namespace={namespace}", "--field-selector=status.phase=Running")["items"][0]
    pods = ipaddress.ip_network(f"{pod['status']['podIP']}/24", strict=False)
    metadata = {"name": "no-store", "namespace": namespace}
    admin.apply({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": [{"port": 9000}]}})
    return {"silent": f"http://{pods[-2]}:9000", "closed": "http://no-store:9000"}


@pytest.mark.slow
def test_a_store_that_only_the_pods_do_not_reach_is_told_with_its_address(jobs, out_of_reach):
    for title, address in out_of_reach.items():
        jobs.append(hanging(f"store-{title}", s3_endpoint=address, cpu="200m", memory="1Gi", grace_seconds=1))
    with waited_for(jobs):
        for found, address in zip(jobs, out_of_reach.values(), strict=True):
            begun = until(lambda job=found: started_at(job), "the worker starts", LIMIT_SECONDS)
            assert seconds_until_told(found, f"server {address}: ", begun) < NAMED_SECONDS
            assert "worker 0" in found.told[-1][1]
            assert "s3_endpoint=..." in found.told[-1][1]
    assert any("connection refused" in text for _, text in jobs[1].told)
    assert [found.failure for found in jobs] == [None, None]


@pytest.mark.slow
def test_a_store_whose_name_only_the_pods_do_not_know_ends_the_waiting(jobs):
    found = hanging("store-nameless", s3_endpoint="http://nosuch:9000", cpu="200m", memory="1Gi", grace_seconds=1)
    jobs.append(found)
    with waited_for([found]):
        until(lambda: started_at(found), "the worker starts", LIMIT_SECONDS)
        until(lambda: found.failure, "the waiting ends", 2 * NAMED_SECONDS)
    assert found.failure.cause == "storage"
    assert "http://nosuch:9000" in str(found.failure)
    assert "s3_endpoint=..." in str(found.failure)


def started_at(found: Hanging) -> datetime | None:
    return next((event.time for event in found.job.events() if event.reason == "Started"), None)
