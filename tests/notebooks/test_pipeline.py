"""Notebook 06 runs headless: of three models the worse one is not promoted, and the better one is.

They are compared by their loss, which moves with every step; random weights learn nothing in so few.
"""

import re

from tests.contracts.test_notebooks import ROOT
from tests.notebooks.executing import execute, home_in

NOTEBOOK = ROOT / "notebooks/06_pipeline.ipynb"
SMALL = {"workers": 1, "samples": 101, "epochs": 3, "metric": "-loss"}


def test_of_three_models_the_worse_one_is_not_promoted_and_the_better_one_is(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with home_in(tmp_path):
        shown = execute(NOTEBOOK, tmp_path / "executed.ipynb", **SMALL)
    ended = re.findall(r"^(shop-\S+): (in place|not promoted)$", shown, re.M)
    assert [how for _, how in ended] == ["in place", "not promoted", "in place"]
    assert f"shop-messages: {ended[2][0]}" in shown
    assert "'label': 'delivery'" in shown
    assert re.search(r"^\S+ +Succeeded +shop-messages +0\.\d+$", shown, re.M)  # the table, with the metric compared
    assert "# PIPELINE DEFINITION" in shown
    (pipeline,) = tmp_path.glob("pipeline-*/pipeline.yaml")
    assert "registry/train-func:1" in pipeline.read_text()
