"""What install.sh made is open to those who need it, and to no other account."""

import json

from tests.install.store import SECRETS, key_of


def test_only_an_admin_reads_secrets_or_runs_programs_in_pods(installed, admin, notebook):
    for verb in ("get", "list", "watch"):
        assert notebook.run("auth", "can-i", verb, "secrets", "--all-namespaces").stdout.strip() == "no"
    for account in ("train-func:notebook", "train-func:default", "kubeflow:default", "train-func-hub:notebook"):
        one = f"--as=system:serviceaccount:{account}"
        for what in (("get", "secret/myminio"), ("list", "secrets"), ("create", "pods/exec"), ("create", "pods")):
            for namespace in ("kubeflow", "train-func"):
                done = admin.run("auth", "can-i", *what, f"--namespace={namespace}", one)
                assert done.stdout.strip() == "no", (account, what, namespace)


def test_no_secret_is_in_an_argument_or_in_what_was_said(installed, admin):
    values = [value for where in SECRETS for value in key_of(admin, *where)]
    told = installed.must("credentials") + installed.said + installed.arguments
    assert len(set(values)) == 4
    assert not [value for value in values if value in told]
    config_maps = json.dumps(admin.json("get", "configmaps", "--all-namespaces"))
    assert not [value for value in values if value in config_maps]
