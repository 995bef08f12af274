"""Values of metrics become plain Python; lists stay lists."""

import json

import numpy as np
import torch

from train_func.worker.training.metric_values import to_python

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
    assert found == json.loads(json.dumps(found))
    assert found == {
        "f1": 0.5,
        "per_class": [0.25, 1.0],
        "matrix": [[3, 1], [0, 4]],
        "nested": {"support": [2, 5], "1": [{"deep": True}]},
        "half": 0.5,
        "text": "good",
        "none": None,
    }
