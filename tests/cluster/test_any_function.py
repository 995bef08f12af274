"""Functions as their authors wrote them, on the operator: they train, and their result and their files come back."""

from pathlib import Path

import pytest

from tests.jobs import any_functions as of_users
from tests.notebooks.executing import execute, pictures
from tests.tiny_model import write_tiny_model
from train_func import Cluster, Run, TextClassification, submit
from train_func.storage import open_store

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


def counts_tokens(parameters):
    from train_func.worker import Session

    with Session(parameters) as session:
        model, tokenizer = session.model()
        train, _ = session.data(tokenizer)
        session.publish(model)
        return {"rows": train.num_rows, "tokens": sum(map(len, train["input_ids"][:]))}


def test_pods_share_the_tokenising_of_many_rows_by_the_store(namespace, tmp_path):
    rows = [f"{'good ' * (number % 7)}food {number},{number % 2}" for number in range(7_001)]
    (tmp_path / "rows.csv").write_text("\n".join(["text,label", *rows]))
    task = TextClassification(model=str(write_tiny_model(tmp_path / "tiny")), dataset=str(tmp_path / "rows.csv"))
    backend = Cluster(**SMALL)
    job = submit(counts_tokens, Run(task=task, workers=2), on=backend, fresh=True)
    try:
        result = job.result(LIMIT_SECONDS)
        assert result["rows"] == 5_601
        parts = [entry.key for entry in open_store(backend.store_address()).list("tokens/")]
        assert sorted(key.rpartition("/")[2] for key in parts) == ["0.arrow", "1.arrow"]
        assert result["tokens"] > 5_601
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
