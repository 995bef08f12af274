"""Notebook 01 runs headless from its first cell to its last, with the parameters of a first run."""

import csv
import json
import re

import pytest

from tests.contracts.test_notebooks import ROOT
from tests.notebooks.executing import errors, execute, home_in, pictures

NOTEBOOK = ROOT / "notebooks/01_finetune.ipynb"
MESSAGES = ROOT / "notebooks/data/shop_messages.csv"


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """What the notebook showed the first time, and the second."""
    folder = tmp_path_factory.mktemp("notebook")
    with home_in(folder):
        return folder, [execute(NOTEBOOK, folder / f"{number}.ipynb") for number in range(2)]


def test_it_shows_progress_metrics_the_model_and_predictions(executed):
    _, (first, _) = executed
    assert "progress step=" in first
    assert "model.safetensors" in first
    shown = re.findall(r"^ *(delivery|payment|product)  (\S.*)$", first, re.M)
    assert len(shown) == 3  # rows to train on
    with MESSAGES.open(encoding="utf-8", newline="") as file:
        assert set(shown) <= {(row["topic"], row["text"]) for row in csv.DictReader(file)}
    assert re.search(r"^right +\d+ +(delivery|payment|product) ", first, re.M)
    assert "audit epoch=4 rows=320 used_once=320 missing=0 repeated=0 world_size=2" in first


def test_a_first_run_has_more_than_nine_in_ten_of_its_held_out_rows_right(executed):
    _, (first, _) = executed
    (right,) = re.findall(r"^right: (\d+) of 80 held-out rows", first, re.M)
    assert int(right) / 80 > 0.9
    (accuracy,) = re.findall(r"^accuracy: (\d\.?\d*)$", first, re.M)
    assert float(accuracy) > 0.9


def test_it_draws_how_the_training_went_and_what_is_taken_for_what(executed):
    folder, _ = executed
    assert len(pictures(folder / "0.ipynb")) == 2


def test_it_shows_nothing_red(executed):
    """Warnings and bars that only a terminal can draw; tqdm draws widgets where ipywidgets is installed."""
    folder, _ = executed
    for number in range(2):
        assert errors(folder / f"{number}.ipynb") == []


def test_the_second_time_it_attaches_to_what_was_done(executed):
    folder, (first, second) = executed
    assert "already done" not in first
    assert "already done" in second
    runs = list((folder / "home/store").glob("*/run.json"))
    assert len(runs) == 1
    assert json.loads(runs[0].read_text())["run"]["task"]["label"] == "topic"
