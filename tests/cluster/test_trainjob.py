"""Notebook 01 as a TrainJob of Kubeflow Trainer, changed by one setting: status, logs, result and the fetched model."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.in_cluster_minio import ObjectStore
from tests.cluster.kubectl import Kubectl
from tests.cluster.test_notebook import Executed, assert_succeeded_with_every_row_used_once, execution
from train_func import Cluster, JobNotFound, attach
from train_func.client.kinds.trainjob import RUNTIME

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def executed(
    sentences: Path, admin: Kubectl, namespace: str, object_store: ObjectStore, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Executed]:
    """Two workers train on 800 sentences for one epoch."""
    if admin.run("get", "clustertrainingruntimes.trainer.kubeflow.org", RUNTIME).returncode != 0:
        pytest.skip(f"the cluster serves no TrainJob: it has no ClusterTrainingRuntime {RUNTIME}")
    target = tmp_path_factory.mktemp("executed") / "01.ipynb"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAIN_FUNC_KIND", "TrainJob")
        shown, job = execution(target, sentences, epochs=1)
        try:
            yield Executed(target, shown, job, {})
        finally:
            job.delete()


def test_it_succeeds_and_uses_every_row_once(executed):
    assert executed.job.manifest["kind"] == "TrainJob"
    assert_succeeded_with_every_row_used_once(executed.shown, executed.job, epochs=1)


def test_its_lines_come_from_both_workers_of_one_attempt(executed):
    lines = list(executed.job.logs())
    assert [line for line in lines if line.startswith("--- attempt")] == lines[:1]
    assert {line.partition("]")[0] for line in lines[1:]} == {"[worker 0", "[worker 1"}


def test_its_result_and_its_model_are_fetched(executed, tmp_path):
    assert 0.5 < executed.job.result()["accuracy"] <= 1.0
    assert (executed.job.fetch(to=tmp_path / "model") / "model.safetensors").exists()


def test_a_handle_for_another_kind_names_this_one(executed):
    with pytest.raises(JobNotFound, match="kind='TrainJob'"):
        attach(executed.job.name, on=Cluster(kind="PyTorchJob")).cancel()
