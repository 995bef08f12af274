"""Pairs of texts, several labels per row and numbers are trained, measured, published, loaded and predicted."""

import json

import pytest

from tests.jobs import functions
from tests.runs import a_run
from train_func import Local, submit

LIMIT = 300.0


def pairs(i):
    return {"text": f"food {i}", "other": f"good {i}", "label": i % 2}


def topics(i):
    return {"text": f"{'good ' * (i % 5)}food {i}", "label": ["good"] * (i % 5 > 1) + ["cheap"] * (i % 2)}


def rated(i):
    return {"text": f"{'good ' * (i % 5)}food {i}", "stars": i % 5 / 2}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "fields", "metrics", "given", "labels"),
    [
        pytest.param(
            pairs, {"text_pair": "other"}, {"accuracy"}, {"text": "good", "text_pair": "bad"}, [["0"], ["1"]],
            id="pairs",
        ),
        pytest.param(
            topics, {"problem_type": "multi_label_classification"}, {"f1_micro", "exact_match"}, "good food",
            [["cheap", "good"]], id="several labels",
        ),
        pytest.param(
            rated, {"problem_type": "regression", "label": "stars"}, {"mse", "mae", "r2"}, "good food", [["stars"]],
            id="numbers",
        ),
    ],
)  # fmt: skip
def test_it_is_trained_by_two_workers_and_predicts(home, tiny_model, tmp_path, row, fields, metrics, given, labels):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row(i)) for i in range(101)))
    run = a_run(model=str(tiny_model), dataset=str(path), workers=2, epochs=2, learning_rate=1e-2, **fields)
    job = submit(functions.fine_tunes, run, on=Local())
    assert job.wait(LIMIT) == "Succeeded", "\n".join(job.logs())
    found = job.result()
    assert set(found) == {*metrics, "loss", "rows"}
    assert found["rows"] == 20
    if "mse" in metrics:
        assert found["mse"] == pytest.approx(found["loss"], rel=1e-4)
        assert found["mse"] < 2  # always predicting their mean reaches 0.5; a head that is not trained, 1.5
    predicted = job.load()(given)
    flat = [
        each
        for of in (predicted if isinstance(predicted, list) else [predicted])
        for each in ([of] if isinstance(of, dict) else of)
    ]
    assert sorted(each["label"] for each in flat) in labels
