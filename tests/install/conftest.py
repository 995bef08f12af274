"""A bare cluster to install on: the one that KUBECONFIG names, as its admin, as long as it has no Training Operator."""

import os
from collections.abc import Iterator

import pytest

from tests.cluster import accounts, in_cluster_minio, training_operator
from tests.cluster.kubectl import Kubectl
from tests.install.installer import NAMESPACES, Installer
from tests.install.objects import everything

# While everything is there, before the tests that take it away.
ORDER = ("test_confined.py", "test_enforced.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those in ORDER come first."""
    items.sort(key=lambda item: ORDER.index(item.path.name) if item.path.name in ORDER else len(ORDER))


@pytest.fixture(scope="session")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Kubectl:
    """The cluster's admin."""
    try:
        return accounts.admin_of_the_cluster(tmp_path_factory.mktemp("admin"))
    except accounts.NoCluster as none:
        pytest.exit(f"install.sh WAS NOT TESTED, because there is no cluster: {none}", returncode=1)


@pytest.fixture(scope="session")
def bare(admin: Kubectl) -> dict[str, str]:
    """Everything in the cluster before anything was installed."""
    if admin.run("get", "crd", "pytorchjobs.kubeflow.org").returncode == 0:
        pytest.skip("install.sh WAS NOT TESTED: this cluster has a Training Operator, and a bare one is expected")
    return everything(admin)


@pytest.fixture(scope="session")
def installer(admin: Kubectl, bare: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installer]:
    """install.sh on that cluster, with kubectl and helm that write down what they are called with."""
    folder = tmp_path_factory.mktemp("installer")
    bundle = folder / "bundle"
    bundle.mkdir()
    (bundle / "operator").symlink_to(training_operator.manifests().parents[1])
    found = Installer(admin.kubeconfig, bundle, folder, os.environ["TRAIN_FUNC_IMAGE"], in_cluster_minio.image())
    yield found
    found("uninstall", "--yes", "--purge")
    for name in NAMESPACES:
        admin("delete", "namespace", name, "--ignore-not-found", "--timeout=120s", seconds=130)


@pytest.fixture(scope="module")
def installed(installer: Installer) -> Installer:
    """Everything but the charts is there."""
    if not installer.in_place:
        installer.must("install")
    return installer


@pytest.fixture(scope="module")
def notebook(installed: Installer, admin: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Kubectl:
    """The account that install.sh made for notebooks."""
    return accounts.notebook_user(admin, "train-func", tmp_path_factory.mktemp("notebook"))
