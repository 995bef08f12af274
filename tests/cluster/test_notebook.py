"""Notebook 01 on a cluster, changed by one word: as accurate as here, every row used once, its model fetched
as it is, and the credentials that it ran with nowhere but where they belong.
"""

import json
import re
import secrets
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import minio
import pytest

from tests.cluster.in_cluster_minio import ObjectStore
from tests.cluster.kept import everything_in, kinds, of_kind
from tests.cluster.kubectl import Kubectl
from tests.notebooks.executing import execute
from tests.notebooks.test_accuracy import EPOCHS, NOTEBOOK, accuracy_of, held_out_audit, training_audit
from train_func import Cluster, attach
from train_func.client.job import Job

PARAMETERS = {
    "where": "Cluster",
    "workers": 2,
    "label": "label",
    "labels": "negative,positive",
    "learning_rate": 1e-4,
    "seed": 1,
}
WORKER = {"TRAIN_FUNC_CPU": "800m", "TRAIN_FUNC_MEMORY": "3Gi"}


@dataclass(frozen=True)
class Executed:
    """What one execution left behind; ``canaries`` are the values of all credentials, by what they are."""

    notebook: Path
    shown: str
    job: Job
    canaries: dict[str, str]


@pytest.fixture(scope="module")
def executed(
    sentences: Path, admin: Kubectl, namespace: str, object_store: ObjectStore, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Executed]:
    """Two workers train on 800 sentences for one epoch, with a token of the Hub in a Secret."""
    token = f"hf_{secrets.token_hex(20)}"
    secret = {"metadata": {"name": "hf-secrets", "namespace": namespace}, "stringData": {"HF_TOKEN": token}}
    admin.apply({"apiVersion": "v1", "kind": "Secret", **secret})
    target = tmp_path_factory.mktemp("executed") / "01.ipynb"
    shown, job = execution(target, sentences, epochs=1)
    canaries = {"key of the store": object_store.secret_key, "token of the Hub": token}
    try:
        yield Executed(target, shown, job, canaries)
    finally:
        job.delete()
        admin("delete", "secret", "hf-secrets", f"--namespace={namespace}")


def execution(target: Path, sentences: Path, epochs: int) -> tuple[str, Job]:
    """What its cells show, and the job that they started."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in WORKER.items():
            patch.setenv(name, value)
        given = {**PARAMETERS, "dataset": str(sentences), "epochs": epochs}
        shown = execute(NOTEBOOK, target, **given)
    name = re.search(r"^(\S+): submitted, 2 workers, 800 rows to train, 200 held out", shown, re.M)
    assert name, shown
    return shown, attach(name[1], on=Cluster())


def assert_succeeded_with_every_row_used_once(shown: str, job: Job, epochs: int) -> None:
    assert job.state == "Succeeded"
    assert f"{job.name}: Succeeded" in shown
    assert training_audit(shown, workers=2) == epochs
    assert held_out_audit(shown)
    assert {pod.reason for pod in job._job.pods()} == {"Completed"}


@pytest.mark.timeout(1800)
def test_it_succeeds_and_uses_every_row_once(executed):
    assert_succeeded_with_every_row_used_once(executed.shown, executed.job, epochs=1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_trained_to_the_end_it_is_as_accurate_as_here(sentences, tmp_path, capsys):
    shown, job = execution(tmp_path / "01.ipynb", sentences, EPOCHS)
    try:
        with capsys.disabled():
            print(f"\nnotebook 01 on the cluster, two workers: accuracy {accuracy_of(shown)}")
        assert accuracy_of(shown) >= 0.88
        assert_succeeded_with_every_row_used_once(shown, job, EPOCHS)
    finally:
        job.delete()


def test_the_minio_client_gets_the_same_files(executed, object_store, tmp_path):
    client = minio.Minio(
        urlsplit(object_store.endpoint).netloc,
        access_key=object_store.access_key,
        secret_key=object_store.secret_key,
        secure=False,
    )
    prefix = f"runs/{executed.job.record.keys.model}/"
    for entry in client.list_objects(object_store.bucket, prefix=prefix, recursive=True):
        path = tmp_path / entry.object_name.removeprefix(prefix)
        client.fget_object(object_store.bucket, entry.object_name, str(path))
    verify(tmp_path)


def verify(folder: Path) -> None:
    """As a person does who has the folder and nothing else."""
    done = subprocess.run(
        ["sha256sum", "--check", "SHA256SUMS"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "model.safetensors: OK" in done.stdout


def test_credentials_are_nowhere_but_in_their_secrets(executed, admin, namespace, object_store):
    looked_at = {
        "the executed notebook": executed.notebook.read_bytes(),
        "the logs": "\n".join(executed.job.logs()).encode(),
        "the fetched manifest": json.dumps(executed.job.manifest).encode(),
        **everything_in(object_store),
        **{kind: of_kind(admin, namespace, kind) for kind in kinds(admin)},
    }
    assert {"pods", "events", "pytorchjobs.kubeflow.org"} <= set(looked_at)
    assert any(name.endswith("model.safetensors") for name in looked_at)
    for what, canary in executed.canaries.items():
        found = [name for name, data in looked_at.items() if canary.encode() in data]
        assert found == [], f"the {what} is in {found}"
    in_secrets = of_kind(admin, namespace, "secrets", decoded=True)
    assert all(canary.encode() in in_secrets for canary in executed.canaries.values())
