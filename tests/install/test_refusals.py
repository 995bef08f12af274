"""What is missing is named before anything is changed, each with its remedy and exit code 3."""

import json
import re
from collections.abc import Iterator

import pytest
import yaml

from tests.cluster import accounts
from tests.cluster.kubectl import Kubectl
from tests.install.installer import Installer
from tests.install.objects import everything
from tests.messages import unnamed

OTHER_OPERATOR = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: training-operator, labels: {control-plane: kubeflow-training-operator}}
spec:
  replicas: 0
  selector: {matchLabels: {app: other}}
  template:
    metadata: {labels: {app: other}}
    spec: {containers: [{name: manager, image: "other/training-operator:v1.7.0"}]}
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


@pytest.fixture(scope="module")
def wrongly_asked(installer: Installer, admin: Kubectl) -> str:
    """The report on options and variables that this cluster cannot follow: all in one."""
    before = everything(admin)
    images = {"TRAIN_FUNC_IMAGE": "localhost:5000/missing/image:1", "S3_IMAGE": "registry.invalid/minio:1"}
    said = refused(installer("install", "--storage", "existing:fast", **images))
    assert everything(admin) == before
    return said


def test_a_class_that_is_not_there(wrongly_asked):
    assert re.search(r"^FAIL  volumes .*\bfast; .*\bstandard\b", wrongly_asked, re.M)
    assert unnamed(wrongly_asked, "--storage existing:", "--storage openebs") == []


def test_an_image_that_its_registry_does_not_have(wrongly_asked):
    assert re.search(r"^FAIL  image +localhost:5000/missing/image:1 is not in localhost:5000\b", wrongly_asked, re.M)


def test_a_registry_that_does_not_answer(wrongly_asked):
    assert re.search(
        r"^FAIL  image +registry\.invalid/minio:1: registry\.invalid does not answer\b", wrongly_asked, re.M
    )


@pytest.fixture(scope="module")
def without_charts(installer: Installer, admin: Kubectl, bare: dict[str, str]) -> str:
    """The report on a cluster without a default class, where no chart can be had."""
    mark = "storageclass.kubernetes.io/is-default-class"
    admin("annotate", "storageclass", "standard", f"{mark}=false", "--overwrite")
    try:
        return refused(installer("install", "--storage", "auto", "--only", "openebs,s3,jupyterhub"))
    finally:
        admin("annotate", "storageclass", "standard", f"{mark}=true", "--overwrite")


def test_a_cluster_without_a_default_class_that_cannot_have_openebs(without_charts):
    assert unnamed(without_charts, "no default class", "openebs-hostpath") == []
    assert "FAIL  openebs" in without_charts
    assert "or --skip openebs" in without_charts


def test_charts_that_cannot_be_had(without_charts):
    assert "FAIL  jupyterhub" in without_charts
    assert "or --skip jupyterhub" in without_charts


@pytest.fixture(scope="module")
def beside_others(installer: Installer, admin: Kubectl) -> Iterator[tuple[str, str]]:
    """The report on a cluster that has an operator, a store and a namespace of others; and where that operator is."""
    with accounts.namespace_of_its_own(admin) as name:
        admin("create", f"--namespace={name}", "--filename=-", given=json.dumps(yaml.safe_load(OTHER_OPERATOR)))
        try:
            for namespace in ("kubeflow", "train-func"):
                admin("create", "namespace", namespace)
            admin("create", "service", "clusterip", "myminio", "--tcp=9000", "--namespace=kubeflow")
            before = everything(admin)
            said = refused(installer("install", TRAIN_FUNC_IMAGE=""))
            assert everything(admin) == before
        finally:
            admin("delete", "namespace", "kubeflow", "train-func", "--timeout=60s", seconds=70)
        yield said, name


def test_an_image_of_workers_that_is_not_named(beside_others):
    assert "TRAIN_FUNC_IMAGE is not" in beside_others[0]


def test_an_operator_of_another_owner(beside_others):
    said, namespace = beside_others
    assert re.search(rf"^FAIL  operator .*\bother/training-operator:v1\.7\.0 .*\b{namespace}\b", said, re.M)
    assert "--skip operator" in said


def test_a_store_of_another_owner(beside_others):
    assert re.search(r"^FAIL  store .*\bservice myminio kubeflow\b", beside_others[0], re.M)
    assert "--s3 external" in beside_others[0]


def test_a_namespace_for_jobs_in_which_a_pod_may_be_privileged(beside_others):
    assert re.search(r"^FAIL  namespaces +train-func allows privileged pods\b", beside_others[0], re.M)
    assert "pod-security.kubernetes.io/enforce=restricted" in beside_others[0]


def test_an_account_without_rights(installer, admin, tmp_path):
    with accounts.namespace_of_its_own(admin) as name:
        user = accounts.notebook_user(admin, name, tmp_path)
        said = refused(installer("install", KUBECONFIG=str(user.kubeconfig)))
        assert re.search(r"^FAIL  rights .*\bnotebook .*\bnamespaces customresourcedefinitions\b", said, re.M)


def test_a_server_that_is_too_old(installer, admin, unchanged, tmp_path):
    from tests.cluster import api_in_front

    with api_in_front.of_version("v1.27.3", admin.kubeconfig, tmp_path) as kubeconfig:
        said = refused(installer("install", KUBECONFIG=str(kubeconfig)))
        assert re.search(r"^FAIL  API server .*\b1\.27\.3\b", said, re.M)
