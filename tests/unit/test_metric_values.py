"""Values of metrics become plain Python and JSON; lists stay lists."""

import json

import numpy as np
import torch

from train_func.worker.training.metric_values import to_json, to_python

METRICS = {
    "f1": np.float32(0.5),
    "per_class": np.array([0.25, 1.0]),
    "matrix": [[np.int64(3), 1], (0, torch.tensor(4))],
    "nested": {"support": torch.tensor([2, 5]), 1: [{"deep": np.bool_(True)}]},
    "half": torch.tensor(0.5, dtype=torch.bfloat16),
    "text": "good",
    "none": None,
}


def test_values_become_what_json_reads_back_as_the_same():
    found = to_python(METRICS)
    assert found == json.loads(json.dumps(found)) == to_json(METRICS)
    assert found == {
        "f1": 0.5,
        "per_class": [0.25, 1.0],
        "matrix": [[3, 1], [0, 4]],
        "nested": {"support": [2, 5], "1": [{"deep": True}]},
        "half": 0.5,
        "text": "good",
        "none": None,
    }


def test_what_json_does_not_have_becomes_null_or_text():
    odd = {"curve": [1.0, float("nan"), {"top": np.inf}], "kind": complex(1, 2)}
    assert to_json(odd) == {"curve": [1.0, None, {"top": None}], "kind": "(1+2j)"}
    assert np.isnan(to_python(odd)["curve"][1])
