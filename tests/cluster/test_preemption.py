"""A worker's pod is deleted in the middle of a training, and no step is lost."""

import pytest

from tests.cluster.kubectl import Kubectl
from tests.cluster.stepping import ONCE, training


@pytest.mark.parametrize("worker", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_deleted_pod_costs_no_step(namespace: str, admin: Kubectl, worker: int):
    with training(seed=worker) as found:
        found.until_step(12)
        admin("delete", f"pod/{found.pod(worker)}", f"--namespace={namespace}", "--wait=false")
        found.succeeds()
        assert found.numbers() == ONCE
