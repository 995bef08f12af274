"""What is missing is named before anything is changed, each with its remedy and exit code 3."""

import json

import pytest
import yaml

from tests.cluster import accounts
from tests.cluster.kubectl import Kubectl
from tests.install.installer import Installer
from tests.install.objects import everything

OTHER_OPERATOR = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: training-operator, labels: {control-plane: kubeflow-training-operator}}
spec:
  replicas: 0
  selector: {matchLabels: {app: other}}
  template:
    metadata: {labels: {app: other}}
    spec: {containers: [{name: manager, image: "somebody/training-operator:v1.7.0"}]}
"""


@pytest.fixture
def unchanged(installer: Installer, admin: Kubectl):
    """Whatever is refused in between has changed nothing."""
    before = everything(admin)
    yield
    assert everything(admin) == before


def refused(done) -> str:
    assert done.returncode == 3, done.stdout + done.stderr
    assert "nothing was changed" in done.stderr
    return done.stdout


def test_a_class_that_is_not_there(installer, unchanged):
    said = refused(installer("install", "--storage", "existing:fast"))
    assert "FAIL  volumes          there is no class fast; there are: standard" in said
    assert "next: --storage existing:ONE OF THEM, or --storage openebs" in said


def test_a_cluster_without_a_default_class_that_cannot_have_openebs(installer, admin, bare):
    mark = "storageclass.kubernetes.io/is-default-class"
    admin("annotate", "storageclass", "standard", f"{mark}=false", "--overwrite")
    try:
        said = refused(installer("install", "--storage", "auto", "--only", "openebs,s3"))
    finally:
        admin("annotate", "storageclass", "standard", f"{mark}=true", "--overwrite")
    assert "the cluster has no default class: OpenEBS makes the class openebs-hostpath" in said
    assert "FAIL  openebs" in said
    assert "or --skip openebs" in said


def test_an_image_that_its_registry_does_not_have(installer, unchanged):
    said = refused(installer("install", S3_IMAGE="localhost:5000/nobody/has:this"))
    assert "FAIL  image            localhost:5000/nobody/has:this is not in localhost:5000, which answers" in said
    assert "next: push it, or mend its name" in said


def test_a_registry_that_does_not_answer(installer, unchanged):
    said = refused(installer("install", S3_IMAGE="registry.invalid/minio:1"))
    assert "FAIL  image            registry.invalid/minio:1: registry.invalid does not answer" in said


def test_an_image_of_workers_that_is_not_named(installer, unchanged):
    assert "TRAIN_FUNC_IMAGE is not set" in refused(installer("install", TRAIN_FUNC_IMAGE=""))


def test_charts_that_cannot_be_had(installer, unchanged):
    said = refused(installer("install", "--only", "jupyterhub"))
    assert "FAIL  jupyterhub" in said
    assert "or --skip jupyterhub" in said


def test_an_operator_of_somebody_else(installer, admin, unchanged):
    with accounts.namespace_of_its_own(admin) as name:
        admin("create", f"--namespace={name}", "--filename=-", given=json.dumps(yaml.safe_load(OTHER_OPERATOR)))
        said = refused(installer("install"))
        assert f"somebody/training-operator:v1.7.0 in namespace {name}" in said
        assert "--skip operator to go on with it" in said


def test_a_store_of_somebody_else(installer, admin):
    admin("create", "namespace", "kubeflow")
    try:
        admin("create", "service", "clusterip", "myminio", "--tcp=9000", "--namespace=kubeflow")
        said = refused(installer("install"))
    finally:
        admin("delete", "namespace", "kubeflow", "--timeout=60s", seconds=70)
    assert "not made by install.sh, and in its way: service myminio kubeflow" in said
    assert "--s3 external goes on with a store that is there" in said


def test_a_namespace_for_jobs_in_which_a_pod_may_be_privileged(installer, admin):
    admin("create", "namespace", "train-func")
    try:
        said = refused(installer("install"))
    finally:
        admin("delete", "namespace", "train-func", "--timeout=60s", seconds=70)
    assert "FAIL  namespaces       train-func allows privileged pods" in said
    assert "label namespace train-func pod-security.kubernetes.io/enforce=restricted" in said


def test_an_account_without_rights(installer, admin, tmp_path):
    with accounts.namespace_of_its_own(admin) as name:
        user = accounts.notebook_user(admin, name, tmp_path)
        said = refused(installer("install", KUBECONFIG=str(user.kubeconfig)))
        assert "FAIL  rights" in said
        assert "notebook may not create namespaces customresourcedefinitions" in said


def test_a_server_that_is_too_old(installer, admin, unchanged, tmp_path):
    from tests.cluster import api_in_front

    with api_in_front.of_version("v1.27.3", admin.kubeconfig, tmp_path) as kubeconfig:
        said = refused(installer("install", KUBECONFIG=str(kubeconfig)))
        assert "FAIL  API server       Kubernetes 1.27.3" in said
