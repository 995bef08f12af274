"""Notebook 06 runs headless: of three models the worse one is not promoted, and the better one is."""

import re

import papermill

from tests.contracts.test_notebooks import ROOT
from tests.notebooks.test_finetune import texts

NOTEBOOK = ROOT / "notebooks/06_pipeline.ipynb"
SMALL = {"workers": 1, "samples": 101, "epochs": 3}


def test_of_three_models_the_worse_one_is_not_promoted_and_the_better_one_is(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("TRAIN_FUNC_STORE", raising=False)
    executed = tmp_path / "executed.ipynb"
    papermill.execute_notebook(NOTEBOOK, executed, SMALL, cwd=NOTEBOOK.parent, progress_bar=False)
    shown = texts(executed)
    ended = re.findall(r"^(model-\S+): (in place|not promoted)$", shown, re.M)
    assert [how for _, how in ended] == ["in place", "not promoted", "in place"]
    assert f"shop-messages: {ended[2][0]}" in shown
    assert "'label': 'delivery'" in shown
    assert "# PIPELINE DEFINITION" in shown
    (pipeline,) = tmp_path.glob("pipeline-*/pipeline.yaml")
    assert "registry/train-func:1" in pipeline.read_text()
