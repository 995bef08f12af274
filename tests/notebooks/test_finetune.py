"""Notebook 01 runs headless from its first cell to its last, with the parameters of a first run."""

import csv
import json
import re

import nbformat
import papermill
import pytest

from tests.contracts.test_notebooks import ROOT

NOTEBOOK = ROOT / "notebooks/01_finetune.ipynb"
MESSAGES = ROOT / "notebooks/data/shop_messages.csv"


def texts(path) -> str:
    outputs = [out for cell in nbformat.read(path, 4).cells for out in cell.get("outputs", [])]
    return "\n".join(out.get("text") or out.get("data", {}).get("text/plain", "") for out in outputs)


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
    outputs = [out for cell in nbformat.read(folder / "0.ipynb", 4).cells for out in cell.get("outputs", [])]
    assert len([out for out in outputs if "image/png" in out.get("data", {})]) == 2


def test_it_shows_nothing_red(executed):
    """Warnings and bars that only a terminal can draw; tqdm draws widgets where ipywidgets is installed."""
    folder, _ = executed
    for number in range(2):
        outputs = [
            out for cell in nbformat.read(folder / f"{number}.ipynb", 4).cells for out in cell.get("outputs", [])
        ]
        assert [out["text"] for out in outputs if out.get("name") == "stderr"] == []


def test_the_second_time_it_attaches_to_what_was_done(executed):
    folder, (first, second) = executed
    assert "already done" not in first
    assert "already done" in second
    runs = list((folder / "home/store").glob("*/run.json"))
    assert len(runs) == 1
    assert json.loads(runs[0].read_text())["run"]["task"]["label"] == "topic"
