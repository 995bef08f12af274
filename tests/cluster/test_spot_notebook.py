"""Notebook 07 on a cluster, changed by one word: pods are moved, evicted and deleted, and the weights are the same."""

import re
from pathlib import Path

import pytest

from tests.cluster.test_drill import rights  # noqa: F401 - a fixture
from tests.contracts.test_notebooks import ROOT
from tests.notebooks.executing import execute
from train_func import Cluster, attach
from train_func.client.job import Job

NOTEBOOK = ROOT / "notebooks/07_spot.ipynb"
WORKER = {"TRAIN_FUNC_MEMORY": "1500Mi"}
EPOCHS = 40  # long enough for five changes, each of some seconds


@pytest.fixture
def executed(rights: None, tmp_path: Path):  # noqa: F811
    """What the cells showed, and the job that they started."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in WORKER.items():
            patch.setenv(name, value)
        shown = execute(NOTEBOOK, tmp_path / "07.ipynb", where="Cluster", cpu="300m", epochs=EPOCHS)
    jobs = [attach(name, on=Cluster()) for name in re.findall(r"^(\S+-[0-9a-f]{12}): submitted", shown, re.M)]
    yield shown, jobs[0]
    for job in jobs:
        job.delete()


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(1800)
def test_pods_leave_move_and_are_deleted_and_the_weights_are_those_of_a_quiet_training(executed: tuple[str, Job]):
    shown, job = executed
    assert job.state == "Succeeded"
    assert re.search(r"worker 1 moved from (\S+) to \1; pause: [\d.]+ s, steps repeated: 0$", shown, re.M)
    assert f"epochs in which every row was used once: {EPOCHS} of {EPOCHS}" in shown
    assert f"steps: {10 * EPOCHS}, each once: True" in shown  # 240 rows, 24 in a step
    evicted, _ = map(int, re.findall(r"^  cost  (\d+) steps? done again; ", shown, re.M))
    assert evicted == 0
    assert re.search(r"^the weights are the same, by the SHA-256 of 1 file$", shown, re.M)
