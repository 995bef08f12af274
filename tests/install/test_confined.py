"""What install.sh made is open to those who need it, and to no other account."""

import json
import os

from tests.cluster import restricted_pod
from tests.cluster.kubectl import Kubectl
from tests.install.store import SECRETS, key_of

ASKS = """
import ssl, urllib.error, urllib.request
from pathlib import Path
folder = Path("/var/run/secrets/kubernetes.io/serviceaccount")
token, trust = (folder / "token").read_text(), ssl.create_default_context(cafile=folder / "ca.crt")
for path in ("kubeflow/secrets/myminio", "kubeflow/secrets", "train-func/secrets"):
    url = f"https://kubernetes.default.svc/api/v1/namespaces/{path}"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    try:
        print(urllib.request.urlopen(request, context=trust, timeout=20).status)
    except urllib.error.HTTPError as refused:
        print(refused.code)
"""


def test_only_an_admin_reads_secrets_or_runs_programs_in_pods(installed, admin, notebook):
    for verb in ("get", "list", "watch"):
        assert notebook.run("auth", "can-i", verb, "secrets", "--all-namespaces").stdout.strip() == "no"
    for account in ("train-func:notebook", "train-func:default", "kubeflow:default", "train-func-hub:notebook"):
        one = f"--as=system:serviceaccount:{account}"
        for what in (("get", "secret/myminio"), ("list", "secrets"), ("create", "pods/exec"), ("create", "pods")):
            for namespace in ("kubeflow", "train-func"):
                done = admin.run("auth", "can-i", *what, f"--namespace={namespace}", one)
                assert done.stdout.strip() == "no", (account, what, namespace)


def test_trying_it_from_a_pod_and_as_the_notebook_is_refused(installed, admin, notebook):
    store = "--namespace=kubeflow"
    assert "Forbidden" in notebook.run("get", "secret", "myminio", store).stderr
    assert "Forbidden" in notebook.run("get", "secrets").stderr
    assert "orbidden" in notebook.run("exec", "myminio-0", store, "--", "env").stderr
    pod = restricted_pod.pod(os.environ["TRAIN_FUNC_IMAGE"], "asks", "python", "-c", ASKS)
    pod["spec"]["automountServiceAccountToken"] = True
    said = restricted_pod.said_by(Kubectl(admin.kubeconfig, "train-func"), pod)
    assert said.split() == ["403", "403", "403"]


def test_no_secret_is_in_an_argument_or_in_what_was_said(installed, admin):
    values = [value for where in SECRETS for value in key_of(admin, *where)]
    told = installed.must("credentials") + installed.said + installed.arguments
    assert len(set(values)) == 4
    assert not [value for value in values if value in told]
    config_maps = json.dumps(admin.json("get", "configmaps", "--all-namespaces"))
    assert not [value for value in values if value in config_maps]
