"""Notebook 05 runs headless from its first cell to its last, and learns the shapes that are shipped."""

import json
import re
import runpy

import nbformat
import papermill
import pyarrow.parquet as parquet
import pytest

from tests.contracts.test_notebooks import ROOT
from tests.notebooks.test_finetune import texts

NOTEBOOK = ROOT / "notebooks/05_images.ipynb"
SHIPPED = ROOT / "notebooks/data/shapes.parquet"


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """What the notebook showed the first time, and the second."""
    folder = tmp_path_factory.mktemp("notebook")
    shown = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAIN_FUNC_HOME", str(folder / "home"))
        patch.delenv("TRAIN_FUNC_STORE", raising=False)
        for number in range(2):
            target = folder / f"{number}.ipynb"
            papermill.execute_notebook(NOTEBOOK, target, cwd=NOTEBOOK.parent, progress_bar=False)
            shown.append(texts(target))
    return folder, shown


def outputs(path):
    return [out for cell in nbformat.read(path, 4).cells for out in cell.get("outputs", [])]


def test_more_than_nine_in_ten_of_the_held_out_images_are_right(executed):
    _, (first, _) = executed
    assert "240 rows to train on, 60 held out; classes: circle, square, star, triangle" in first
    (accuracy,) = re.findall(r"^accuracy: (\d\.?\d*)$", first, re.M)
    assert float(accuracy) > 0.9
    (right,) = re.findall(r"^right: (\d+) of 60 held-out images", first, re.M)
    assert int(right) / 60 == pytest.approx(float(accuracy), abs=1e-3)  # asked one by one, and by the published model
    assert "audit epoch=20 rows=240 used_once=240 missing=0 repeated=0 world_size=2" in first


def test_it_shows_images_the_curves_and_what_is_taken_for_what(executed):
    folder, (first, _) = executed
    num_rows_of_images = 2 if "wrong ones" in first else 1
    pictures = [out for out in outputs(folder / "0.ipynb") if "image/png" in out.get("data", {})]
    assert len(pictures) == num_rows_of_images + 2


def test_it_shows_nothing_red(executed):
    folder, _ = executed
    for number in range(2):
        red = [out["text"] for out in outputs(folder / f"{number}.ipynb") if out.get("name") == "stderr"]
        assert red == []


def test_the_second_time_it_attaches_to_what_was_done(executed):
    folder, (first, second) = executed
    assert "already done" not in first
    assert "already done" in second
    runs = list((folder / "home/store").glob("*/run.json"))
    assert len(runs) == 1
    assert json.loads(runs[0].read_text())["run"]["task"]["kind"].endswith(":ImageClassification")


def test_the_shipped_images_are_what_their_program_draws(tmp_path):
    drawn = runpy.run_path(str(SHIPPED.with_name("draw_shapes.py")))
    drawn["write"](tmp_path / "shapes.parquet")
    assert parquet.read_table(tmp_path / "shapes.parquet").equals(parquet.read_table(SHIPPED))
    assert SHIPPED.stat().st_size < 400_000
