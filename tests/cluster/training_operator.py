"""The Training Operator of the cluster under test: there, and its webhook answering."""

import json
import subprocess
from pathlib import Path

from tests.cluster.kubectl import Kubectl, until
from tests.testbed import TESTBED

INSTALL_SECONDS = 120
REMEDY = (
    "install it: kubectl apply --server-side -k "
    '"https://github.com/kubeflow/trainer.git/manifests/overlays/standalone'
    '?ref=4445c12aa62e4345b0c2c6ac9b215a70eca46ed7"'
)
# The smallest that the webhook accepts.
PROBE = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "PyTorchJob",
    "metadata": {"name": "probe"},
    "spec": {
        "pytorchReplicaSpecs": {
            "Worker": {"replicas": 1, "template": {"spec": {"containers": [{"name": "pytorch", "image": "none"}]}}}
        }
    },
}


def ensure(admin: Kubectl) -> None:
    """Installs it from the testbed where it is missing, and waits until it accepts a PyTorchJob."""
    if admin.run("get", "crd", "pytorchjobs.kubeflow.org").returncode:
        _install(admin)
    until(lambda: _accepts(admin), "the Training Operator accepts a PyTorchJob", INSTALL_SECONDS, lambda: _said(admin))


def manifests() -> Path:
    """The folder of the published manifests, as the testbed has them."""
    assert (TESTBED / "operator").exists(), f"this cluster has no Training Operator; {REMEDY}"
    shown = subprocess.run([TESTBED / "operator"], capture_output=True, text=True, check=True, timeout=INSTALL_SECONDS)
    return Path(shown.stdout.strip())


def _install(admin: Kubectl) -> None:
    admin("apply", "--server-side", "--force-conflicts", f"--kustomize={manifests()}", seconds=INSTALL_SECONDS)


def _accepts(admin: Kubectl) -> bool:
    done = admin.run("create", "--dry-run=server", "--namespace=default", "--filename=-", given=json.dumps(PROBE))
    return done.returncode == 0


def _said(admin: Kubectl) -> str:
    where = "--namespace=kubeflow"
    pods = admin.run("describe", "pods", where, "--selector=control-plane=kubeflow-training-operator").stdout
    return pods + admin.run("logs", "deployment/training-operator", where, "--tail=30").stdout
