"""Notebook 01 runs headless from its first cell to its last, with the parameters of a first run."""

import csv
import re

import pytest

from tests.contracts.test_notebooks import ROOT
from tests.notebooks.executing import errors, execute, home_in, pictures

NOTEBOOK = ROOT / "notebooks/01_finetune.ipynb"
MESSAGES = ROOT / "notebooks/data/shop_messages.csv"


SIZES = {"brief": ("1 worker", {"workers": 1, "epochs": 2}), "as shipped": ("2 workers", {"workers": 2, "epochs": 4})}


@pytest.fixture(scope="module", params=["brief", pytest.param("as shipped", marks=pytest.mark.slow)])
def executed(request, tmp_path_factory):
    """Where the notebook was executed, what it showed, and its size."""
    folder = tmp_path_factory.mktemp("notebook")
    size = SIZES[request.param]
    with home_in(folder):
        return folder, execute(NOTEBOOK, folder / "executed.ipynb", **size[1]), size


def test_it_shows_progress_metrics_the_model_and_predictions(executed):
    _, shown, (workers, given) = executed
    assert re.search(rf"✓ Succeeded  (\S+)  train_func\(\) on Local  {workers}\b", shown)
    assert "model.safetensors" in shown
    to_train_on = re.findall(r"^ *(delivery|payment|product)  (\S.*)$", shown, re.M)
    assert len(to_train_on) == 3
    with MESSAGES.open(encoding="utf-8", newline="") as file:
        assert set(to_train_on) <= {(row["topic"], row["text"]) for row in csv.DictReader(file)}
    assert re.search(r"^right +\d+ +(delivery|payment|product) ", shown, re.M)
    assert f"each of 320 rows was used exactly once in epochs 1 to {given['epochs']}" in shown


def test_a_first_run_has_more_than_nine_in_ten_of_its_held_out_rows_right(executed):
    _, shown, _ = executed
    (accuracy,) = re.findall(r"^accuracy: (\d\.?\d*)$", shown, re.M)
    assert float(accuracy) > 0.9
    (right,) = re.findall(r"^right: (\d+) of 80 held-out rows", shown, re.M)
    assert int(right) / 80 == pytest.approx(float(accuracy), abs=1e-3)  # by the published model, asked here


def test_it_draws_how_the_training_went_and_what_is_taken_for_what(executed):
    folder, *_ = executed
    assert len(pictures(folder / "executed.ipynb")) == 2


def test_it_shows_nothing_red(executed):
    """Warnings and bars that only a terminal can draw; tqdm draws widgets where ipywidgets is installed."""
    folder, *_ = executed
    assert errors(folder / "executed.ipynb") == []
