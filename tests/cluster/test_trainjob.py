"""Notebook 01 as a TrainJob of Kubeflow Trainer, changed by one setting: status, logs, result and the fetched model."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.kubectl import Kubectl
from tests.cluster.stepping import ONCE, SMALL, training
from tests.cluster.test_notebook import assert_succeeded_with_every_row_used_once, execution
from train_func import Cluster, JobNotFound, attach
from train_func.client.job import Job
from train_func.client.kinds.trainjob import RUNTIME, TRAINJOB

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def served(admin: Kubectl) -> None:
    if admin.run("get", "clustertrainingruntimes.trainer.kubeflow.org", RUNTIME).returncode != 0:
        pytest.skip(f"the cluster serves no TrainJob: it has no ClusterTrainingRuntime {RUNTIME}")


@pytest.fixture(scope="module")
def executed(served: None, sentences: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Job]]:
    """What the notebook has shown of two workers that train on 800 sentences for one epoch, and their job."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAIN_FUNC_KIND", "TrainJob")
        shown, job = execution(tmp_path_factory.mktemp("executed") / "01.ipynb", sentences, epochs=1)
        try:
            yield shown, job
        finally:
            job.delete()


def test_it_succeeds_uses_every_row_once_and_its_result_and_model_are_fetched(executed, tmp_path):
    shown, job = executed
    assert job.manifest["kind"] == "TrainJob"
    assert_succeeded_with_every_row_used_once(shown, job, epochs=1)
    assert 0.5 < job.result()["accuracy"] <= 1.0
    assert (job.fetch(to=tmp_path / "model") / "model.safetensors").exists()


def test_its_status_has_the_progress_and_the_metrics_of_the_result(executed, namespace, admin):
    name = "deployment/kubeflow-trainer-controller-manager"
    if "--feature-gates=TrainJobStatus=true" not in admin("get", name, "--namespace=kubeflow-system", "--output=yaml"):
        pytest.skip("the operator was started without --feature-gates=TrainJobStatus=true")
    _, job = executed
    trainjob = admin.json("get", f"{TRAINJOB.plural}.{TRAINJOB.group}", job.name, f"--namespace={namespace}")
    status = trainjob["status"]["trainerStatus"]
    assert (status["progressPercentage"], status["estimatedRemainingSeconds"]) == (100, 0)
    metrics = {metric["name"]: float(metric["value"]) for metric in status["metrics"]}
    assert metrics["accuracy"] == pytest.approx(job.result()["accuracy"], rel=1e-5)
    assert {"loss", "rows_per_second"} <= metrics.keys()
    assert "was not sent" not in "\n".join(job.logs())


def test_a_handle_for_another_kind_names_this_one(executed):
    with pytest.raises(JobNotFound, match="kind='TrainJob'"):
        attach(executed[1].name, on=Cluster(kind="PyTorchJob")).cancel()


@pytest.mark.parametrize("worker", [0, 1])
def test_a_deleted_pod_is_told_at_once_and_no_step_is_lost_or_done_twice(namespace, admin, worker):
    with training(Cluster(**SMALL, kind="TrainJob"), seed=worker) as found:
        found.until_step(12)
        labels = f"{TRAINJOB.job_label}={found.name},{TRAINJOB.worker_label}={worker}"
        admin("delete", "pods", f"--namespace={namespace}", f"--selector={labels}", "--wait=false")
        told = found.until_heard(f"worker {worker} was deleted", 10)
        assert (told.cause, told.permanent) == ("preemption", False)
        found.succeeds()
        # Of the other worker, whose container starts again in its pod, the cluster keeps the last lines alone.
        lines = [line for line in found.job.logs() if line.startswith(f"[worker {worker}]")]
        assert [int(number) for number in re.findall(r"step (\d+) is done", "\n".join(lines))] == ONCE
