"""What is missing is named before anything is changed, each with its remedy and exit code 3."""

import json
import re

import pytest
import yaml

from tests.cluster import accounts, api_in_front
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


@pytest.fixture(scope="module")
def without_charts(installer: Installer, admin: Kubectl, bare: dict[str, str]) -> str:
    """The report on a cluster without a default class, where no chart can be had."""
    mark = "storageclass.kubernetes.io/is-default-class"
    admin("annotate", "storageclass", "standard", f"{mark}=false", "--overwrite")
    try:
        return refused(installer("install", "--storage", "auto", "--only", "openebs,s3,jupyterhub"))
    finally:
        admin("annotate", "storageclass", "standard", f"{mark}=true", "--overwrite")


@pytest.fixture(scope="module")
def beside_others(installer: Installer, admin: Kubectl) -> str:
    """The report on a cluster with an operator, a store and a namespace of others; NAME is where that operator is."""
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
        return said.replace(name, "NAME")


# What is missing: the report that tells it, its line, and words of the remedy.
MISSING = {
    "the class of volumes": (
        "wrongly_asked",
        r"^FAIL  volumes .*\bfast; .*\bstandard\b",
        ("--storage existing:", "--storage openebs"),
    ),
    "an image in its registry": (
        "wrongly_asked",
        r"^FAIL  image +localhost:5000/missing/image:1 is not in localhost:5000\b",
        (),
    ),
    "a registry": (
        "wrongly_asked",
        r"^note  image +registry\.invalid/minio:1: registry\.invalid does not answer\b",
        (),
    ),
    "a default class and the chart of one": (
        "without_charts",
        "^FAIL  openebs",
        ("no default class", "openebs-hostpath", "or --skip openebs"),
    ),
    "the chart of JupyterHub": ("without_charts", "^FAIL  jupyterhub", ("or --skip jupyterhub",)),
    "the image of workers": ("beside_others", "TRAIN_FUNC_IMAGE is not", ()),
    "an operator of one's own": (
        "beside_others",
        r"^FAIL  operator .*\bother/training-operator:v1\.7\.0 .*\bNAME\b",
        ("--skip operator",),
    ),
    "a store of one's own": ("beside_others", r"^FAIL  store .*\bservice myminio kubeflow\b", ("--s3 external",)),
    "a namespace without privileged pods": (
        "beside_others",
        r"^FAIL  namespaces +train-func allows privileged pods\b",
        ("pod-security.kubernetes.io/enforce=restricted",),
    ),
}


@pytest.mark.parametrize("what", MISSING)
def test_what_is_missing_is_named_with_its_remedy(request, what):
    report, line, words = MISSING[what]
    said = request.getfixturevalue(report)
    assert re.search(line, said, re.M)
    assert unnamed(said, *words) == []


def test_an_account_without_rights(installer, admin, tmp_path):
    with accounts.namespace_of_its_own(admin) as name:
        user = accounts.notebook_user(admin, name, tmp_path)
        said = refused(installer("install", KUBECONFIG=str(user.kubeconfig)))
        assert re.search(r"^FAIL  rights .*\bnotebook .*\bnamespaces customresourcedefinitions\b", said, re.M)


def test_a_server_that_is_too_old(installer, admin, unchanged, tmp_path):
    with api_in_front.of_version("v1.27.3", admin.kubeconfig, tmp_path) as kubeconfig:
        said = refused(installer("install", KUBECONFIG=str(kubeconfig)))
        assert re.search(r"^FAIL  API server .*\b1\.27\.3\b", said, re.M)
