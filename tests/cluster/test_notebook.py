"""Notebook 01 on a cluster, changed by one word: as accurate as here, and every row used once."""

import re
from pathlib import Path

import pytest

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
    assert f"✓ Succeeded  {job.name}" in shown
    assert training_audit(shown) == epochs
    assert held_out_audit(shown)
    assert {pod.reason for pod in job._job.pods()} == {"Completed"}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("epochs", "accuracy"), [(1, 0), pytest.param(EPOCHS, 0.88, marks=pytest.mark.slow)])
def test_it_succeeds_as_accurate_as_here_and_uses_every_row_once(sentences, tmp_path, epochs, accuracy):
    shown, job = execution(tmp_path / "01.ipynb", sentences, epochs)
    try:
        assert_succeeded_with_every_row_used_once(shown, job, epochs)
        assert accuracy_of(shown) >= accuracy
    finally:
        job.delete()
