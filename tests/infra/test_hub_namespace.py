"""Where install.sh has JupyterHub: apart from store, operator and jobs; one that is beside them already stays there.

A kubectl stands in that knows one context and answers with what a test says the cluster has.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
OWN, BEFORE = "train-func-hub", "kubeflow"
KUBECTL = """#!/usr/bin/env bash
case "$*" in
    *"get-contexts"*) echo here ;;
    *"get configmap train-func-install"*) printf 'profile=generic\\ns3=seaweedfs\\nstorage=none\\n' ;;
    *"get deployments,persistentvolumeclaims --namespace $HUB_IS_IN "*) echo deployment.apps/hub ;;
    *"get deployment/hub --namespace"*) printf '01/1 hub:1' ;;
esac
"""


def said(folder: Path, command: str, hub_is_in: str) -> str:
    """What install.sh tells of a cluster that has its hub there, if anywhere."""
    (folder / "kubectl").write_text(KUBECTL)
    (folder / "kubectl").chmod(0o755)
    given = {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(folder), "HUB_IS_IN": hub_is_in}
    given |= {"TRAIN_FUNC_IMAGE": "registry.example/train-func:1"}
    done = subprocess.run([ROOT / "install.sh", command], env=given, capture_output=True, text=True, timeout=60)
    return done.stdout


@pytest.mark.parametrize(("hub_is_in", "namespace"), [("", OWN), (OWN, OWN), (BEFORE, BEFORE)])
def test_a_hub_is_found_where_it_is_and_otherwise_gets_a_namespace_of_its_own(tmp_path, hub_is_in, namespace):
    status = said(tmp_path, "status", hub_is_in)
    assert re.search(r"-n (\S+) port-forward svc/proxy-public", status)[1] == namespace
    assert ("to move it" in status) is (namespace == BEFORE)
    credentials = said(tmp_path, "credentials", hub_is_in)
    assert set(re.findall(r"-n (\S+) get secret my-jupyter-login", credentials)) == {namespace}


def test_status_and_credentials_say_that_its_users_are_one_circle_of_trust(tmp_path):
    for command in ("status", "credentials"):
        assert "circle of trust" in said(tmp_path, command, OWN)


def test_nothing_of_the_hub_is_in_a_namespace_of_the_others(tmp_path):
    if not shutil.which("kubectl"):
        pytest.skip("kubectl is not here: NOT TESTED what install.sh renders")
    command = [ROOT / "install.sh", "render", "--only", "s3,jobs"]
    given = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "KUBECONFIG": "/dev/null"}
    done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=60, check=True)
    found = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(done.stdout) if each}
    binding = found["RoleBinding", "train-func-notebook-of-jupyterhub"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "notebook", "namespace": OWN}]
    sources = found["NetworkPolicy", "myminio"]["spec"]["ingress"][0]["from"]
    notebooks = next(each for each in sources if "component" in each.get("podSelector", {}).get("matchLabels", {}))
    assert notebooks["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": OWN}}
