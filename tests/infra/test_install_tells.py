"""What install.sh tells of a cluster: JupyterHub apart from store, operator and jobs, jobs that run, nothing in part.

A kubectl stands in that knows one context and answers with what a test says the cluster has.
"""

import shutil

import pytest
import yaml

from tests.infra.install_sh import install, needs_kubectl

MISSING_PREREQUISITE, FAILED = 3, 4
HUB_NAMESPACE = "train-func-hub"
KUBECTL = """#!/usr/bin/env bash
case "$*" in
    *"get-contexts"*) echo here ;;
    *"get configmap train-func-install"*) printf 'profile=generic\\ns3=seaweedfs\\nstorage=none\\n' ;;
    *"get customresourcedefinitions --no-headers"*) echo "$KIND_OF_JOBS" ;;
    *"get $KIND_OF_JOBS "*) printf '%s\\n' "$JOBS_THERE" ;;
    *"get ${IS_NOT_TOLD:-nothing} "*) exit 1 ;;
    *"get "*"/"*) printf '01/1 image:1' ;;
esac
"""
STORE = "statefulset/myminio"


@pytest.mark.parametrize("command", ["status", "credentials"])
def test_status_and_credentials_say_that_the_users_of_the_hub_are_one_circle_of_trust(tmp_path, command):
    assert "circle of trust" in install(command, folder=tmp_path, programs={"kubectl": KUBECTL}).stdout


@pytest.mark.parametrize(
    ("kind", "condition", "code"),
    [
        ("PyTorchJob kubeflow.org", "Running,", MISSING_PREREQUISITE),
        ("PyTorchJob kubeflow.org", "Created,Succeeded,", 0),
        ("TrainJob trainer.kubeflow.org", "", MISSING_PREREQUISITE),
        ("TrainJob trainer.kubeflow.org", "Complete,", 0),
        ("TrainJob trainer.kubeflow.org", "Failed,", 0),
    ],
)
def test_uninstalling_is_refused_while_a_job_of_any_kind_has_not_ended(tmp_path, kind, condition, code):
    name, group = kind.split()
    cluster = {"KIND_OF_JOBS": f"{name.lower()}s.{group}", "JOBS_THERE": f"{name} alice/reviews {condition}"}
    done = install("uninstall", "--dry-run", folder=tmp_path, programs={"kubectl": KUBECTL}, **cluster)
    assert done.returncode == code, done.stderr
    assert (f"{name} alice/reviews" in done.stderr) is (code != 0)


def test_nothing_of_the_hub_is_in_a_namespace_of_the_others():
    needs_kubectl()
    done = install("render", "--only", "s3,jobs")
    found = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(done.stdout) if each}
    binding = found["RoleBinding", "train-func-notebook-of-jupyterhub"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "notebook", "namespace": HUB_NAMESPACE}]
    sources = found["NetworkPolicy", "myminio"]["spec"]["ingress"][0]["from"]
    notebooks = next(each for each in sources if "component" in each.get("podSelector", {}).get("matchLabels", {}))
    assert notebooks["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": HUB_NAMESPACE}}


@pytest.mark.parametrize("broken", ["cp", "sed"])
def test_a_component_of_which_one_line_failed_is_reported_and_not_installed(tmp_path, broken):
    condition = 'case "$*" in *jobs/*|*infra/jobs*) echo disk full >&2; exit 1 ;; esac'
    fails = f'#!/bin/sh\n{condition}\nexec {shutil.which(broken)} "$@"\n'
    done = install("doctor", "--only", "jobs", folder=tmp_path, programs={"kubectl": KUBECTL, broken: fails})
    assert done.returncode == MISSING_PREREQUISITE
    assert ["FAIL", "jobs", "disk", "full"] in [line.split() for line in done.stdout.splitlines()]


def test_a_status_that_the_cluster_did_not_tell_is_a_failure(tmp_path):
    done = install("status", folder=tmp_path, programs={"kubectl": KUBECTL}, IS_NOT_TOLD=STORE)
    assert done.returncode == FAILED
    assert STORE in done.stderr
    assert "s3 " not in done.stdout
