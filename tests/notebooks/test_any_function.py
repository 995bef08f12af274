"""Notebook 02 runs headless: a loop's dict, file and picture come back, and a mistake is told with its line."""

from tests.contracts.test_notebooks import ROOT
from tests.notebooks.executing import errors, execute, home_in, pictures

NOTEBOOK = ROOT / "notebooks/02_any_function.ipynb"


def test_it_shows_what_the_function_printed_returned_and_saved(tmp_path):
    executed = tmp_path / "executed.ipynb"
    with home_in(tmp_path):
        shown = execute(NOTEBOOK, executed, epochs=2, rows=101)
    assert "accuracy: 0." in shown
    assert "0.weight: (64, 2)" in shown
    assert 'line 6: `return {"mean": points.maen()}`' in shown
    assert pictures(executed)
    assert errors(executed) == []
