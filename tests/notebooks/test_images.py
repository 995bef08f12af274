"""Notebook 05 runs headless from its first cell to its last, and learns the shapes that are shipped."""

import hashlib
import re
import runpy
from concurrent.futures import ThreadPoolExecutor

import pyarrow.parquet as parquet
import pytest

from tests.contracts.test_notebooks import ROOT
from tests.notebooks.executing import errors, execute, home_in, pictures
from tests.twin_jobs import until
from train_func import attach

NOTEBOOK = ROOT / "notebooks/05_images.ipynb"
LIMIT_SECONDS = 600.0  # only a hang comes near it
SHIPPED = ROOT / "notebooks/data/shapes.parquet"


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The folder of its home, and what the notebook showed."""
    folder = tmp_path_factory.mktemp("notebook")
    with home_in(folder):
        return folder, execute(NOTEBOOK, folder / "0.ipynb")


def test_more_than_nine_in_ten_of_the_held_out_images_are_right(executed):
    _, first = executed
    assert "240 rows to train on, 60 held out; classes: circle, square, star, triangle" in first
    (accuracy,) = re.findall(r"^accuracy: (\d\.?\d*)$", first, re.M)
    assert float(accuracy) > 0.9
    (right,) = re.findall(r"^right: (\d+) of 60 held-out images", first, re.M)
    assert int(right) / 60 == pytest.approx(float(accuracy), abs=1e-3)  # asked one by one, and by the published model
    assert "audit epoch=20 rows=240 used_once=240 missing=0 repeated=0 world_size=2" in first


def test_it_shows_images_the_curves_and_what_is_taken_for_what(executed):
    folder, first = executed
    num_rows_of_images = 2 if "wrong ones" in first else 1
    assert len(pictures(folder / "0.ipynb")) == num_rows_of_images + 2


def test_it_shows_nothing_red(executed):
    folder, _ = executed
    assert errors(folder / "0.ipynb") == []


def weights_in(folder):
    """SHA-256 of the weights of each published model of the store."""
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("model/model.safetensors")}


@pytest.mark.slow
def test_a_pod_deleted_in_mid_epoch_changes_no_bit_of_the_model(executed, monkeypatch):
    """That of ``executed`` is the undisturbed one: how often checkpoints are saved decides no result."""
    folder, _ = executed
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(folder / "home"))
    monkeypatch.delenv("TRAIN_FUNC_STORE", raising=False)
    (before,) = set(weights_in(folder / "home/store").values())
    (name,) = [path.parent.name for path in (folder / "home/store").glob("*/run.json")]
    given = {"fresh": True, "checkpoint_every": 0.5}
    with ThreadPoolExecutor(1) as threads:
        target = folder / "disturbed.ipynb"
        notebook = threads.submit(execute, NOTEBOOK, target, **given)
        job = until(lambda: second_generation(name), "the job of the notebook", LIMIT_SECONDS)
        until(lambda: [step for step in saved(job) if step > 45], "a checkpoint of the fourth epoch", LIMIT_SECONDS)
        job._job.delete_pod(f"{job.record.job_name}-worker-1")
        notebook.result(LIMIT_SECONDS)
    resumed = re.findall(r"goes on behind step (\d+), from a checkpoint of attempt 1", "\n".join(job.logs()))
    print(f"\nworker 1 deleted: gone on behind step {resumed} of 300")
    assert int(resumed[0]) > 45
    assert set(weights_in(folder / "home/store").values()) == {before}
    assert len(weights_in(folder / "home/store")) > 2  # of the attempts too


def second_generation(name):
    job = attach(name)
    return job if job.record.generation == 2 and job.state == "Running" else None


def saved(job):
    """Steps that checkpoints were saved after."""
    return [int(step) for step in re.findall(r"saved the checkpoint of step (\d+)", "\n".join(job.logs()))]


def test_the_shipped_images_are_what_their_program_draws(tmp_path):
    drawn = runpy.run_path(str(SHIPPED.with_name("draw_shapes.py")))
    drawn["write"](tmp_path / "shapes.parquet")
    assert parquet.read_table(tmp_path / "shapes.parquet").equals(parquet.read_table(SHIPPED))
    assert SHIPPED.stat().st_size < 400_000
