"""A cluster to test on: any that KUBECONFIG names. Its admin sets up; the tests act as a notebook may.

Each session has a namespace of its own, enforcing pod security restricted, with MinIO and the notebook's account.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.cluster import accounts, in_cluster_minio, inside, restricted_pod, training_operator
from tests.cluster.kubectl import Kubectl
from tests.local_jobs import until
from tests.s3_servers import S3Server
from train_func import Cluster
from train_func.client.job import Job

OURS = ("train-func/run", "training.kubeflow.org/job-name")
OTHERS = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "TRAIN_FUNC_STORE_SECRET")


@pytest.fixture(scope="session")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Kubectl:
    """The cluster's admin; for what is set up and broken, never for what is tested."""
    try:
        admin = accounts.admin_of_the_cluster(tmp_path_factory.mktemp("admin"))
    except accounts.NoCluster as none:
        pytest.exit(f"NOTHING WAS TESTED ON A CLUSTER, because there is none: {none}", returncode=1)
    training_operator.ensure(admin)
    return admin


@pytest.fixture(scope="session")
def namespace(admin: Kubectl) -> Iterator[str]:
    with accounts.namespace_of_its_own(admin) as name:
        yield name


@pytest.fixture(scope="session")
def image(admin: Kubectl, namespace: str) -> str:
    """What the workers run; pulled before anything is timed."""
    name = os.environ.get("TRAIN_FUNC_IMAGE")
    if not name:
        pytest.exit("NOTHING WAS TESTED ON A CLUSTER: TRAIN_FUNC_IMAGE names no image; `make image`", returncode=1)
    restricted_pod.said_by(Kubectl(admin.kubeconfig, namespace), restricted_pod.pod(name, "pull", "true"))
    return name


@pytest.fixture(scope="session")
def notebook(admin: Kubectl, namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Kubectl:
    """The account that the tests act as, in its namespace."""
    return accounts.notebook_user(admin, namespace, tmp_path_factory.mktemp("notebook"))


@pytest.fixture(scope="session")
def object_store(admin: Kubectl, namespace: str) -> Iterator[S3Server]:
    """MinIO in the namespace."""
    with in_cluster_minio.running(Kubectl(admin.kubeconfig, namespace)) as found:
        yield found


@pytest.fixture(scope="session", autouse=True)
def as_notebook(
    notebook: Kubectl, image: str, object_store: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Everything that this process starts is the notebook's account, and Cluster() needs no argument."""
    home = {"TRAIN_FUNC_HOME": str(tmp_path_factory.mktemp("home")), "TRAIN_FUNC_IMAGE": image}
    with pytest.MonkeyPatch.context() as patch:
        for name in OTHERS:
            patch.delenv(name, raising=False)
        for name, value in {**home, **in_cluster_minio.variables(notebook, object_store)}.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def left_behind(admin: Kubectl, namespace: str) -> Callable[[], list[str]]:
    """All objects of any kind in the namespace that carry our labels or the operator's."""
    kinds = admin("api-resources", "--namespaced", "--verbs=list", "--output=name").split()

    def look() -> list[str]:
        found: list[str] = []
        for label in OURS:
            where = (f"--namespace={namespace}", f"--selector={label}", "--ignore-not-found")
            found += admin("get", ",".join(kinds), *where, "--output=name").split()
        return sorted(set(found))

    return look


@pytest.fixture(scope="session")
def inside_a_worker() -> dict[str, Any]:
    """What the training function of a real job found around itself."""
    return inside.told_by(inside.finished_job())


@pytest.fixture(scope="session", autouse=True)
def nothing_left(as_notebook: None, notebook: Kubectl, left_behind: Callable[[], list[str]]) -> Iterator[None]:
    """After every test: when each job of this session is deleted, nothing of ours is left."""
    yield
    for job in notebook.json("get", "pytorchjobs")["items"]:
        Cluster().job(job["metadata"]["name"]).delete()
    until(lambda: left_behind() == [], "nothing of the jobs is left")  # pods end within their grace period


@pytest.fixture
def jobs() -> Iterator[list[Job]]:
    """Deleted afterwards, so that the next test has room."""
    made: list[Job] = []
    yield made
    for job in made:
        job.delete()
