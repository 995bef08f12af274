"""Notebook 01 runs headless from its first cell to its last, with small parameters."""

import json
import re

import nbformat
import papermill
import pytest

from tests.contracts.test_notebooks import ROOT

NOTEBOOK = ROOT / "notebooks/01_finetune.ipynb"
SMALL = {"samples": 101, "epochs": 1}


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
            papermill.execute_notebook(NOTEBOOK, target, SMALL, cwd=NOTEBOOK.parent, progress_bar=False)
            shown.append(texts(target))
    return folder, shown


def test_it_shows_progress_metrics_the_model_and_predictions(executed):
    _, (first, _) = executed
    assert "progress step=" in first
    assert re.search(r"^accuracy: 0\.\d+$", first, re.M)
    assert "model.safetensors" in first
    assert len(re.findall(r"^ +[1-5]  \w", first, re.M)) == 3  # rows to train on
    assert re.search(r"^right: \d+ of 20 held-out rows$", first, re.M)
    assert re.search(r"^wrong \d+ ", first, re.M)
    assert "audit epoch=1 rows=81 used_once=81 missing=0 repeated=0 world_size=2" in first


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
    assert json.loads(runs[0].read_text())["run"]["task"]["samples"] == 101
