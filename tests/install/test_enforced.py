"""What install.sh lets into the store and to the workers, where the cluster enforces network policies."""

import pytest

from tests.cluster import accounts
from tests.install.reach import listening, reached, skip_unless_enforced

# Finding out whether a cluster enforces them takes a minute; test_confined reads them everywhere.
pytestmark = pytest.mark.slow
STORE = "myminio.kubeflow.svc.cluster.local:9000"


@pytest.fixture(scope="module", autouse=True)
def enforced(installed, admin):
    skip_unless_enforced(admin)


def test_the_store_is_reached_by_jobs_and_by_no_other_pod(admin):
    assert reached(admin, "train-func", STORE) == {STORE}
    with accounts.namespace_of_its_own(admin) as name:
        assert reached(admin, name, STORE) == set()


def test_a_pod_beside_the_store_does_not_reach_it_either(admin):
    assert reached(admin, "kubeflow", STORE) == set()


def test_workers_are_reached_by_one_another_alone(admin):
    with listening(admin, "train-func") as worker, accounts.namespace_of_its_own(admin) as name:
        assert reached(admin, "train-func", worker) == {worker}
        assert reached(admin, name, worker) == set()
        assert reached(admin, "kubeflow", worker) == set()
