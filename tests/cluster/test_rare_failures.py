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
from train_func import Cluster, InvalidInput, Run

NAMED_SECONDS = 30.0  # from the appearance of a trouble until it is told
KUBELET_SECONDS = 120.0  # it measures volumes once a minute
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


def seconds_until_told(found: Hanging, words: str, since: datetime) -> float:
    """From ``since`` by the cluster's clock, which has whole seconds."""
    when = next((when for when, said in found.told if words in said), None)
    assert when is not None, found.told
    return when - (time.monotonic() - found.begun) + (datetime.now(UTC) - since).total_seconds()


def test_a_worker_that_fills_its_disk_is_told_which_and_what_to_raise(jobs):
    jobs += [hanging("over-volume", runs(FILLS_ITS_DISK), disk="20Mi"), hanging("over-ephemeral", over_ephemeral)]
    waiting = threading.Thread(target=wait_for_all, args=(dict.fromkeys(jobs, KUBELET_SECONDS),))
    waiting.start()
    evicted = [until(lambda found=found: evicted_at(found), "the kubelet evicts it", KUBELET_SECONDS) for found in jobs]
    waiting.join()
    volume, ephemeral = jobs
    assert seconds_until_told(volume, "more than disk='20Mi' in its working folder", evicted[0]) < NAMED_SECONDS
    assert seconds_until_told(ephemeral, "together took more than 20Mi of disk", evicted[1]) < NAMED_SECONDS
    assert "next: raise disk=..." in volume.told[0][1]
    assert "(`kubectl get limitranges -o yaml`) and not disk=..." in ephemeral.told[0][1]


def evicted_at(found: Hanging) -> datetime | None:
    return next((event.time for event in found.job.events() if event.reason == "Evicted"), None)


@contextlib.contextmanager
def denying(admin: Kubectl, namespace: str, group: str, resource: str) -> Iterator[None]:
    """A policy of the API server that lets nobody create that kind in the namespace."""
    name = f"{namespace}-{resource}"
    kind = {"apiGroups": [group], "apiVersions": ["*"], "operations": ["CREATE"], "resources": [resource]}
    about: dict[str, Any] = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": name}}
    rule = {"expression": "false", "message": DENIED}
    policy = {"failurePolicy": "Fail", "matchConstraints": {"resourceRules": [kind]}, "validations": [rule]}
    here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    binding = {"policyName": name, "validationActions": ["Deny"], "matchResources": here}
    admin.apply(
        {**about, "kind": "ValidatingAdmissionPolicy", "spec": policy},
        {**about, "kind": "ValidatingAdmissionPolicyBinding", "spec": binding},
    )
    try:
        yield
    finally:
        admin("delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", name)
        until(lambda: not policy_holds(admin, namespace), "the policy is gone")


def test_a_policy_that_denies_the_job_is_told_beforehand(admin, namespace):
    with denying(admin, namespace, "kubeflow.org", "pytorchjobs"):
        error = until(refusal, "the policy is in force")
    assert len(error.faults) == 1
    assert DENIED in str(error)
    assert "a policy of this cluster" in str(error)


def refusal() -> InvalidInput | None:
    try:
        Cluster(cpu="50m", memory="64Mi").preflight(Run(model="m", dataset="d", workers=1))
    except InvalidInput as error:
        return error
    return None


def test_a_policy_that_denies_the_pods_of_a_job_that_is_there_is_raised(jobs, admin, namespace):
    found = hanging("denied", runs(SLEEPS))
    jobs.append(found)
    until(lambda: found.job.state == "Running", "the job runs")
    of_the_job = f"--selector=training.kubeflow.org/job-name={found.job.record.job_name}"
    with denying(admin, namespace, "", "pods"):
        until(lambda: policy_holds(admin, namespace), "the policy is in force")
        found.begun = time.monotonic()
        admin("delete", "pods", f"--namespace={namespace}", of_the_job, "--grace-period=1", "--wait=false")
        wait_for_all({found: NAMED_SECONDS})
    assert found.failure is not None, found.told
    assert found.failure.cause == "permission"
    assert DENIED in str(found.failure)
    assert "a policy of this cluster" in str(found.failure)


def policy_holds(admin: Kubectl, namespace: str) -> bool:
    pod = json.dumps(restricted_pod.pod("none", "nobody", "true"))
    return (
        DENIED in admin.run("create", "--dry-run=server", f"--namespace={namespace}", "--filename=-", given=pod).stderr
    )


@pytest.fixture
def out_of_reach(admin: Kubectl, namespace: str) -> dict[str, str]:
    """Addresses at which pods find no store: nobody has the first, and no pod stands behind the second."""
    pod = admin.json("get", "pods", f"--namespace={namespace}", "--field-selector=status.phase=Running")["items"][0]
    pods = ipaddress.ip_network(f"{pod['status']['podIP']}/24", strict=False)
    metadata = {"name": "no-store", "namespace": namespace}
    admin.apply({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": [{"port": 9000}]}})
    return {"silent": f"http://{pods[-2]}:9000", "closed": "http://no-store:9000"}


def test_a_store_that_only_the_pods_do_not_reach_is_told_with_its_address(jobs, out_of_reach):
    for title, address in out_of_reach.items():
        jobs.append(hanging(f"store-{title}", s3_endpoint=address, cpu="200m", memory="1Gi"))
    wait_for_all(dict.fromkeys(jobs, 2 * NAMED_SECONDS))
    for found, address in zip(jobs, out_of_reach.values(), strict=True):
        begun = min(event.time for event in found.job.events() if event.reason == "Started")
        assert seconds_until_told(found, "worker 0 waits for the store: ", begun) < NAMED_SECONDS
        assert f"server {address} " in found.told[0][1]
        assert "s3_endpoint=..." in found.told[0][1]
        assert found.failure is None
    assert "connection refused" in jobs[1].told[0][1]
