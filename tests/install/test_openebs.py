"""OpenEBS, with the chart that TRAIN_FUNC_TEST_CHARTS holds: it gives volumes, and stays while one is in use."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster import accounts, restricted_pod
from tests.cluster.kubectl import Kubectl, until
from tests.install import charts
from tests.install.installer import NAMESPACES, Installer

ALONE = ("--only", "openebs", "--storage", "openebs")
CLASS = "openebs-hostpath"
CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "data"},
    "spec": {
        "storageClassName": CLASS,
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
    },
}


@pytest.fixture(scope="module")
def installed(admin: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installer]:
    """OpenEBS is there, and nothing else."""
    folder = tmp_path_factory.mktemp("openebs")
    images = {}
    found = charts.folder_with("openebs", *(["provisioner-localpv"] if charts.BUILD.exists() else []))
    there = admin.run("get", "namespace", *NAMESPACES, "--output=name").stdout.split()
    if charts.BUILD.exists():
        binary = found / "provisioner-localpv"
        images["OPENEBS_PROVISIONER_IMAGE"] = charts.built("provisioner", binary, folder=folder)
    installer = charts.installer_with(admin, found, folder, **images)
    installer.must("install", *ALONE)
    yield installer
    installer("uninstall", "--purge")
    for name in NAMESPACES:
        if f"namespace/{name}" not in there:
            admin("delete", "namespace", name, "--ignore-not-found", "--timeout=120s", seconds=130)


@pytest.fixture
def user(admin: Kubectl) -> Iterator[Kubectl]:
    """A namespace that enforces pod security restricted, with a claim to a volume of OpenEBS."""
    with accounts.namespace_of_its_own(admin) as name:
        found = Kubectl(admin.kubeconfig, name)
        found.apply(CLAIM)
        yield found


def writer(image: str) -> dict[str, Any]:
    """A pod that writes into the volume and reads it again."""
    wanted = restricted_pod.pod(image, "writer", "sh", "-c", "echo kept >/data/file && cat /data/file")
    wanted["spec"]["securityContext"]["fsGroup"] = 1000
    wanted["spec"]["volumes"].append({"name": "data", "persistentVolumeClaim": {"claimName": "data"}})
    wanted["spec"]["containers"][0]["volumeMounts"].append({"name": "data", "mountPath": "/data"})
    return wanted


def test_its_class_is_the_default_only_where_there_is_no_other(installed, admin):
    field = r"jsonpath={.metadata.annotations.storageclass\.kubernetes\.io/is-default-class}"
    others = [each for each in admin("get", "storageclasses", "--output=name").split() if not each.endswith(CLASS)]
    defaults = [each for each in others if admin("get", each, f"--output={field}") == "true"]
    ours = admin("get", "storageclass", CLASS, f"--output={field}")
    assert (ours == "true") is not bool(defaults)


def test_it_gives_a_volume_and_stays_while_that_is_in_use(installed, admin, user):
    assert "kept" in restricted_pod.said_by(user, writer(os.environ["TRAIN_FUNC_IMAGE"]))
    assert user("get", "pvc", "data", "--output=jsonpath={.status.phase}") == "Bound"
    said = installed.must("uninstall", "--purge")
    assert f"kept: these volumes need it, of the claims {user.namespace}/data" in said
    admin("rollout", "status", "deployment/openebs-localpv-provisioner", "--namespace=openebs", "--timeout=30s")


def test_once_no_volume_is_left_it_goes_without_a_trace(installed, admin):
    until(lambda: CLASS not in admin("get", "persistentvolumes", "--output=wide"), "the volume is gone", 120)
    installed.must("install", *ALONE)
    installed.must("uninstall")
    for what in ("namespace/openebs", f"storageclass/{CLASS}", "clusterrole/openebs-localpv-provisioner"):
        assert "NotFound" in admin.run("get", what).stderr
