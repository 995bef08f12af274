"""What install.sh lets into the store and to the workers, where the cluster enforces network policies."""

import pytest

from tests.cluster import accounts
from tests.install.reach import listening, reached, skip_unless_enforced
from train_func.client.job_spec import RUN_LABEL

# Finding out whether a cluster enforces them takes a minute; test_confined reads them everywhere.
pytestmark = pytest.mark.slow
STORE = "myminio.kubeflow.svc.cluster.local:9000"
STEP = {"pipeline/runid": "a-run"}  # as the server of Kubeflow Pipelines labels the pod of each step


@pytest.fixture(scope="module", autouse=True)
def enforced(installed, admin):
    skip_unless_enforced(admin)


def test_the_store_is_reached_by_jobs_and_steps_of_pipelines_and_by_no_other_pod(admin):
    assert reached(admin, "train-func", STORE) == {STORE}
    assert reached(admin, "kubeflow", STORE, labels=STEP) == {STORE}
    with accounts.namespace_of_its_own(admin) as name:
        assert reached(admin, name, STORE) == set()


def test_a_pod_beside_the_store_does_not_reach_it_either(admin):
    assert reached(admin, "kubeflow", STORE) == set()


def test_workers_are_reached_by_workers_alone(admin):
    worker = {RUN_LABEL: "a-run"}
    with listening(admin, "train-func", worker) as address, accounts.namespace_of_its_own(admin) as name:
        assert reached(admin, "train-func", address, labels=worker) == {address}
        assert reached(admin, "train-func", address) == set()
        assert reached(admin, name, address, labels=worker) == set()
        assert reached(admin, "kubeflow", address, labels=worker) == set()


def test_another_pod_of_the_namespace_is_reached_from_within_it(admin):
    with listening(admin, "train-func") as address, accounts.namespace_of_its_own(admin) as name:
        assert reached(admin, "train-func", address) == {address}
        assert reached(admin, name, address) == set()
