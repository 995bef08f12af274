"""Notebook 05 on a cluster, with a pod deleted in mid-epoch: its model is that of an undisturbed one, bit for bit."""

import hashlib
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cluster.kubectl import Kubectl, until
from tests.notebooks.executing import execute
from tests.notebooks.test_images import NOTEBOOK
from train_func import Cluster, attach
from train_func.client.job import Job
from train_func.client.kinds.pod import RUN_LABEL

LIMIT_SECONDS = 600.0
WORKER = {"TRAIN_FUNC_CPU": "800m", "TRAIN_FUNC_MEMORY": "2Gi"}
STEPS_PER_EPOCH, EPOCHS = 15, 20
EARLY = 3 * STEPS_PER_EPOCH  # a checkpoint behind it is waited for


def execution(target: Path, *, fresh: bool) -> str:
    """What its cells show."""
    return execute(NOTEBOOK, target, where="Cluster", checkpoint_every=0.5, fresh=fresh)


def job_of(admin: Kubectl, namespace: str) -> Job | None:
    """The one that the notebook has submitted."""
    found = admin.json("get", "pytorchjobs", f"--namespace={namespace}", f"--selector={RUN_LABEL}")["items"]
    names = [of["metadata"]["labels"][RUN_LABEL] for of in found]
    return next((attach(name, on=Cluster()) for name in names if name.startswith("stand-in-res-shapes")), None)


def saved(job: Job) -> list[int]:
    """Steps that checkpoints were saved after."""
    return [int(step) for step in re.findall(r"saved the checkpoint of step (\d+)", "\n".join(job.logs()))]


def weights_of(shown: str) -> str:
    """SHA-256 of the fetched weights."""
    (folder,) = re.findall(r"^the model, verified: (.+)$", shown, re.M)
    return hashlib.sha256((Path(folder) / "model.safetensors").read_bytes()).hexdigest()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_deleted_pod_changes_nothing_of_the_model(
    admin: Kubectl, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name, value in WORKER.items():
        monkeypatch.setenv(name, value)
    with ThreadPoolExecutor(1) as threads:
        notebook = threads.submit(execution, tmp_path / "disturbed.ipynb", fresh=False)
        job = until(lambda: job_of(admin, namespace), "the job of the notebook", LIMIT_SECONDS)
        assert job is not None
        until(lambda: [step for step in saved(job) if step > EARLY], f"a checkpoint behind step {EARLY}", LIMIT_SECONDS)
        admin("delete", "pod", f"{job.record.job_name}-worker-1", f"--namespace={namespace}", "--wait=false")
        disturbed = notebook.result(LIMIT_SECONDS)
    try:
        assert job.state == "Succeeded"
        assert_trained(disturbed)
        resumed = re.findall(r"goes on behind step (\d+), from a checkpoint of attempt 1", "\n".join(job.logs()))
        print(f"\nworker 1 deleted: gone on behind step {resumed} of {STEPS_PER_EPOCH * EPOCHS}")
        assert int(resumed[0]) > EARLY
        weights = weights_of(disturbed)  # before the folder is that of the next generation
        undisturbed = execution(tmp_path / "undisturbed.ipynb", fresh=True)
        assert_trained(undisturbed)
        assert weights == weights_of(undisturbed)
        assert accuracy_of(disturbed) == accuracy_of(undisturbed)
    finally:
        job.delete()


def accuracy_of(shown: str) -> float:
    return float(re.findall(r"^accuracy: ([0-9.]+)", shown, re.M)[-1])


def assert_trained(shown: str) -> None:
    """To the end, every row once per epoch, and well."""
    audited = re.findall(r"audit epoch=(\d+) rows=240 used_once=240 missing=0 repeated=0 world_size=2\b", shown)
    assert set(map(int, audited)) == set(range(1, EPOCHS + 1))
    assert accuracy_of(shown) > 0.9
