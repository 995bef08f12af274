"""Token classification is trained, measured, published, loaded and predicts, by the function of any task."""

import json

from tests.jobs import functions
from train_func import Local, Run, TokenClassification, submit

LIMIT = 300.0


def sentence(number):
    """In which "feta" has four tokens."""
    words = [*["the", "so", "very"][: number % 4], *(["cold", "pizza"] if number % 3 else ["feta"]), "was", "good"]
    kinds = {"cold": "B-DISH", "pizza": "I-DISH", "feta": "B-DISH"}
    return {"tokens": words, "tags": [kinds.get(word, "O") for word in words]}


def dishes(spans):
    assert {span["entity_group"] for span in spans} == {"DISH"}
    return [span["word"] for span in spans]


def test_a_worker_learns_the_tags_and_the_pipeline_joins_them_to_spans(home, tiny_model, tmp_path):
    path = tmp_path / "dishes.jsonl"
    path.write_text("\n".join(json.dumps(sentence(number)) for number in range(101)))
    task = TokenClassification(model=str(tiny_model), dataset=str(path), max_length=16)
    job = submit(functions.fine_tunes, Run(task=task, workers=1, epochs=3, learning_rate=1e-2), on=Local())
    assert job.wait(LIMIT) == "Succeeded", "\n".join(job.logs())
    metrics = job.result()
    assert set(metrics) == {"accuracy", "precision", "recall", "f1", "loss", "rows"}
    assert metrics["rows"] == 20
    assert metrics["f1"] > 0.9
    tags = job.load()
    assert dishes(tags("so very cold pizza was good")) == ["cold pizza"]
    # A text of more tokens than a row had in the training is read in parts that overlap.
    assert dishes(tags("the feta was good so very cold pizza was good " * 30)) == ["feta", "cold pizza"] * 30
