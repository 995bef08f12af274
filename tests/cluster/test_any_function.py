"""Functions as their authors wrote them, on the operator: they train, and their result and their files come back."""

from pathlib import Path

import pytest

from tests.jobs import any_functions as of_users
from tests.notebooks.executing import execute, pictures
from train_func import Cluster, Run, submit

LIMIT_SECONDS = 300.0
NOTEBOOK = Path(__file__).parents[2] / "notebooks/02_any_function.ipynb"
SMALL = {"cpu": "500m", "memory": "1Gi"}


@pytest.mark.parametrize(
    ("function", "workers", "result", "files"),
    [
        (of_users.fits_a_line_with_numpy, 1, {"slope", "offset"}, {"line.pkl", "points.csv"}),
        (of_users.trains_mnist_style, 2, {"loss"}, {"mnist_cnn.pt"}),
        (of_users.publishes_a_module, 2, {"loss", "classes"}, {"model.safetensors", "metrics.json"}),
    ],
    ids=lambda given: getattr(given, "__name__", None),
)
def test_a_function_trains_on_the_operator_and_comes_back(namespace, tmp_path, function, workers, result, files):
    job = submit(function, Run(workers=workers), on=Cluster(**SMALL), fresh=True)
    try:
        assert result <= set(job.result(LIMIT_SECONDS))
        folder = job.fetch(to=tmp_path / "model")
        assert files <= {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        seen = [line for line in job.logs() if "seen rank=" in line]
        assert len(seen) == workers
        assert all(f"world={workers} " in line for line in seen)
    finally:
        job.delete()


@pytest.mark.slow
def test_notebook_02_changed_by_one_word_trains_on_the_operator(namespace, tmp_path, monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_CPU", "500m")
    monkeypatch.setenv("TRAIN_FUNC_MEMORY", "1Gi")
    given = {"where": "Cluster", "epochs": 7, "fresh": True}
    shown = execute(NOTEBOOK, tmp_path / "02.ipynb", **given)
    assert "submitted, 3 workers" in shown
    assert "epoch 7: loss " in shown
    assert "4.weight: (2, 64)" in shown
    assert pictures(tmp_path / "02.ipynb")
