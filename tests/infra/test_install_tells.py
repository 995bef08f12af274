"""What install.sh tells of a cluster, and what it does where something was left there or is missing.

A kubectl stands in that knows one context and answers with what a test says the cluster has.
"""

import shutil

import pytest
import yaml

from tests.infra.install_sh import install, needs_kubectl
from tests.messages import unnamed

MISSING_PREREQUISITE, FAILED = 3, 4
HUB_NAMESPACE = "train-func-hub"
KUBECTL = """#!/usr/bin/env bash
case "$*" in
    *"get-contexts"*) echo here ;;
    *"version --client"* | *"--raw /version") echo '"gitVersion": "v1.34.0"' ;;
    *"get nodes "*) echo True ;;
    *"get configmap train-func-install"*)
        printf 'profile=generic\\ns3=seaweedfs\\nstorage=%s\\n%b' "${STORAGE_THEN:-none}" "$DECIDED"
        ;;
    *"get secrets "*"component=s3 "*) echo "$KEYS_THERE" ;;
    *"get statefulset myminio "*annotations*) echo "$KEYS_GIVEN" ;;
    *"get secret myminio-jobs "*) echo "$KEY_OF_JOBS" ;;
    *"get persistentvolumeclaim "*storageClassName*) echo "$CLASS_OF_VOLUMES" ;;
    *"get jobs "*) echo "${SETUP-myminio-setup-1}" ;;
    *"get job myminio-setup-1 "*) echo Complete ;;
    *"get deployments.apps,"*) printf '%s\\n' "${OURS:-Service,v1,myminio,kubeflow,s3}" ;;
    *"items[*]}{.metadata.namespace}{"*) echo "$NAMESPACE_OF_JOBS" ;;
    *" delete "*) echo "$*" >>"$HOME/deleted" ;;
    *"get customresourcedefinitions --no-headers"*) echo "$KIND_OF_JOBS" ;;
    *"get $KIND_OF_JOBS "*) printf '%s\\n' "$JOBS_THERE" ;;
    *"get ${IS_NOT_TOLD:-nothing} "*) exit 1 ;;
    *"get statefulset/"* | *"get deployment/"*) printf '01/1 image:1' ;;
esac
"""
STORE = "statefulset/myminio"
PROGRAMS = {"kubectl": KUBECTL, "curl": "#!/bin/sh\nexit 7\n"}  # no registry is reached
DEFINITION = "CustomResourceDefinition,apiextensions.k8s.io/v1,pytorchjobs.kubeflow.org,,operator"
ROOT_KEY = "Secret,v1,myminio,kubeflow,s3"
VOLUME = "PersistentVolumeClaim,v1,data-myminio-0,kubeflow,"


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


def findings(done):
    return [line.split()[:2] for line in done.stdout.splitlines() if line.startswith(("ok", "note", "FAIL"))]


def test_a_store_is_ready_whatever_image_is_named_since_and_an_image_that_only_nodes_reach_is_no_fault(tmp_path):
    given = {"TRAIN_FUNC_IMAGE": "registry.example/another:2"}
    done = install("doctor", "--only", "s3", folder=tmp_path, programs=PROGRAMS, **given)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ["ok", "s3"] in findings(done)
    assert ["note", "image"] in findings(done)


@pytest.mark.parametrize(
    "given",
    [{"KEYS_THERE": "myminio-1", "KEYS_GIVEN": "myminio-1 myminio-jobs-2"}, {"SETUP": ""}],
    ids=["a key is gone", "no set-up"],
)
def test_a_store_that_was_not_set_up_with_the_keys_that_are_there_is_not_ready(tmp_path, given):
    done = install("doctor", "--only", "s3", folder=tmp_path, programs=PROGRAMS, **given)
    assert done.returncode == FAILED
    assert ["FAIL", "s3"] in findings(done)
    assert "not set up yet" in done.stdout


def test_a_volume_that_was_kept_in_another_class_is_told_with_that_class(tmp_path):
    given = {"CLASS_OF_VOLUMES": "fast", "STORAGE_THEN": "openebs"}
    done = install("doctor", "--only", "s3,jupyterhub", folder=tmp_path, programs=PROGRAMS, **given)
    assert done.returncode == MISSING_PREREQUISITE
    assert findings(done).count(["FAIL", "volumes"]) == 2
    assert unnamed(done.stdout, "data-myminio-0", "hub-db-dir", "uninstall --purge") == []
    assert "uninstall, then install --storage existing:fast" in done.stdout  # the other class is refused until then
    kept = install("doctor", "--only", "s3,jupyterhub", folder=tmp_path, programs=PROGRAMS, CLASS_OF_VOLUMES="fast")
    assert ["FAIL", "volumes"] not in findings(kept)  # for an installation without volumes it is in nobody's way


@pytest.mark.parametrize("key", ["", "a-key"])
def test_jobs_without_a_store_to_get_a_key_of_are_refused_before_anything_is_changed(tmp_path, key):
    done = install("doctor", "--only", "jobs", folder=tmp_path, programs=PROGRAMS, KEY_OF_JOBS=key)
    assert (["FAIL", "store"] in findings(done)) is (not key)


def test_what_was_decided_holds_for_a_later_call_with_auto_or_skip(tmp_path):
    given = {"DECIDED": "components=s3 jobs\\n"}
    told = install("status", "--storage", "auto", "--skip", "s3", folder=tmp_path, programs=PROGRAMS, **given).stdout
    assert "volumes none" in told
    assert unnamed(told, "--only jupyterhub adds it", "by --only or --skip") == []


@pytest.mark.parametrize("volume", ["", VOLUME])
def test_uninstalling_keeps_the_root_key_with_its_volume_alone(tmp_path, volume):
    ours = f"{DEFINITION}\n{ROOT_KEY}\n{volume}"
    assert install("uninstall", "--yes", folder=tmp_path, programs=PROGRAMS, OURS=ours).returncode == 0
    assert ("delete secret/myminio " in (tmp_path / "deleted").read_text()) is (not volume)


@pytest.mark.parametrize("namespace", ["train-func", "alice"])
def test_purging_keeps_the_jobs_of_other_namespaces(tmp_path, namespace):
    given = {"OURS": DEFINITION, "NAMESPACE_OF_JOBS": namespace, "answer": "here\n"}
    done = install("uninstall", "--purge", "--yes", folder=tmp_path, programs=PROGRAMS, **given)
    assert done.returncode == 0, done.stderr
    deleted = (tmp_path / "deleted").read_text()
    assert ("/pytorchjobs.kubeflow.org" in deleted) is (namespace == "train-func")
