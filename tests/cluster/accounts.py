"""Who acts in the cluster under test: its admin for what is set up, and the notebook's account for everything else."""

import contextlib
import json
import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.cluster.kubectl import Kubectl

INFRA = Path(__file__).parents[2] / "infra"
ACCOUNT = "notebook"
TOKEN_LIFE = "8h"
NAMESPACE_SECONDS = 180
RESTRICTED = {
    "pod-security.kubernetes.io/enforce": "restricted",
    "app.kubernetes.io/managed-by": "train-func-tests",
}


class NoCluster(Exception):
    """There is none to test on; the message says why."""


def admin_of_the_cluster(folder: Path) -> Kubectl:
    """The user of the current context of KUBECONFIG, in a file of its own; raises NoCluster."""
    command = ["kubectl", "config", "view", "--minify", "--flatten", "--raw", "--output=json"]
    try:
        view = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except FileNotFoundError:
        raise NoCluster("kubectl is not installed") from None
    if view.returncode:
        raise NoCluster(f"KUBECONFIG={os.environ.get('KUBECONFIG', '')}: {view.stderr.strip()}")
    admin = Kubectl(_written(folder / "admin.kubeconfig", json.loads(view.stdout)))
    answer = admin.run("get", "--raw", "/readyz")
    if answer.returncode:
        raise NoCluster(f"KUBECONFIG={os.environ.get('KUBECONFIG', '')}: {answer.stderr.strip()}")
    return admin


@contextlib.contextmanager
def namespace_of_its_own(admin: Kubectl) -> Iterator[str]:
    """A fresh namespace that enforces the pod security level restricted; removed with all that is in it."""
    name = f"train-func-{secrets.token_hex(3)}"
    admin.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": RESTRICTED}})
    try:
        yield name
    finally:
        patient = Kubectl(admin.kubeconfig, limit=None)
        patient("delete", "namespace", name, f"--timeout={NAMESPACE_SECONDS}s", seconds=NAMESPACE_SECONDS + 10)


def notebook_user(admin: Kubectl, namespace: str, folder: Path) -> Kubectl:
    """The account of infra/rbac.yaml in ``namespace``, by a token in a kubeconfig of its own."""
    if admin.run("get", "serviceaccount", ACCOUNT, f"--namespace={namespace}").returncode:  # else install.sh made it
        admin("apply", f"--namespace={namespace}", f"--filename={INFRA / 'rbac.yaml'}")
    token = admin("create", "token", ACCOUNT, f"--namespace={namespace}", f"--duration={TOKEN_LIFE}").strip()
    config = json.loads(admin.kubeconfig.read_text())
    config["users"] = [{"name": ACCOUNT, "user": {"token": token}}]
    config["contexts"][0]["context"] |= {"user": ACCOUNT, "namespace": namespace}
    return Kubectl(_written(folder / "notebook.kubeconfig", config), namespace)


def _written(path: Path, config: dict[str, Any]) -> Path:
    path.touch(mode=0o600)
    path.write_text(json.dumps(config))
    return path
