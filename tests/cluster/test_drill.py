"""Drills on a cluster: a rank is killed and a pod deleted by an account that may, and refused to one that may not."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import accounts
from tests.cluster.kubectl import Kubectl, until
from tests.cluster.stepping import SMALL
from tests.jobs.functions import tells_its_steps
from tests.messages import refuses
from train_func import Cluster, Run, submit
from train_func.client.job import Job

ROLE = "train-func-drill"
RULES = [
    {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["get", "create"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"]},
]


@pytest.fixture
def job(namespace: str) -> Iterator[Job]:
    """A training of two workers, 800 steps of a tenth of a second."""
    fields = {"workers": 2, "epochs": 160, "batch_size": 8, "micro_batch_size": 4, "checkpoint_every": 1.0}
    job = submit(tells_its_steps, Run(parameters={"pause": 0.1}, **fields), on=Cluster(**SMALL), fresh=True)
    yield job
    job.delete()


@pytest.fixture
def rights(admin: Kubectl, namespace: str) -> Iterator[None]:
    """Those that the refusal asks for, given to the notebook's account."""
    metadata = {"name": ROLE, "namespace": namespace}
    rbac = "rbac.authorization.k8s.io"
    subject = {"kind": "ServiceAccount", "name": accounts.ACCOUNT, "namespace": namespace}
    admin.apply(
        {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": metadata, "rules": RULES},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": ROLE},
            "subjects": [subject],
        },
    )
    account = f"--as=system:serviceaccount:{namespace}:{accounts.ACCOUNT}"
    asked = ("auth", "can-i", "create", "pods", "--subresource=exec", f"--namespace={namespace}", account)
    until(lambda: admin.run(*asked).returncode == 0, "the account may execute programs in pods")
    yield
    admin("delete", f"rolebinding/{ROLE}", f"role/{ROLE}", f"--namespace={namespace}")


def test_an_account_without_the_rights_is_refused_with_the_role_and_nothing_is_done(job: Job, namespace: str):
    for kill, right in (("rank", "pods/exec"), ("pod", "delete"), ("node", "pods/eviction")):
        with refuses(right, "kind: Role", ROLE, namespace, cause="permission"):
            job.drill(kill)
    with refuses("kind: ClusterRole", "nodes", cause="permission"):
        job.drill("node")
    with refuses("kubectl scale", cause="input"):
        job.drill("store")


def test_a_rank_that_is_killed_and_a_pod_that_is_deleted_cost_what_the_report_says(
    job: Job, rights: None, tmp_path: Path
):
    campaign = tmp_path / "campaign.json"
    campaign.write_text(
        '{"faults": [{"kill": "rank", "rank": 1, "at_step": 100}, {"kill": "pod", "worker": 1},'
        ' {"kill": "pod", "worker": 0, "signal": "TERM"}, {"kill": "worker", "worker": 1, "signal": "TERM"}]}'
    )
    report = job.drill(campaign)
    rank, pod, stopped, told = report.recoveries
    assert (rank.cause, rank.steps_lost) == ("killed", rank.last_step - rank.resumed_step)
    assert pod.has_right_cause
    assert [recovery.cause for recovery in (stopped, told)] == ["preemption"] * 2
    assert [recovery.steps_lost for recovery in (stopped, told)] == [0, 0]
    assert all(recovery.seconds for recovery in report.recoveries)  # a new step came, when a node had room
    assert report.state == "Running"
