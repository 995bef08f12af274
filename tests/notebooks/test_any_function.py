"""Notebook 02 runs headless: a plain loop on three workers, its dict, its file and its picture come back."""

import nbformat
import papermill

from tests.contracts.test_notebooks import ROOT
from tests.notebooks.test_finetune import texts

NOTEBOOK = ROOT / "notebooks/02_any_function.ipynb"


def test_it_shows_what_the_function_printed_returned_and_saved(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TRAIN_FUNC_STORE", raising=False)
    executed = tmp_path / "executed.ipynb"
    small = {"epochs": 2, "rows": 101}
    papermill.execute_notebook(NOTEBOOK, executed, small, cwd=NOTEBOOK.parent, progress_bar=False)
    shown = texts(executed)
    assert "accuracy: 0." in shown
    assert "0.weight: (64, 2)" in shown
    outputs = [out for cell in nbformat.read(executed, 4).cells for out in cell.get("outputs", [])]
    assert [out for out in outputs if "image/png" in out.get("data", {})]
    assert [out["text"] for out in outputs if out.get("name") == "stderr"] == []
