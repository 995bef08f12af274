"""Metrics summed up rank by rank are those of all predictions together, at any number of ranks."""

import numpy as np
import pytest

from tests.distributed.conftest import HANG
from tests.distributed.task_metrics import SIZES, TAGS
from tests.distributed.worlds import ALONE_AND_UGLY
from train_func.worker.tasks.metrics import spans_of

pytestmark = pytest.mark.timeout(HANG)


def of_several(logits, labels):
    said, true = logits > 0, labels > 0.5
    f1 = 2 * (said & true).sum() / (said.sum() + true.sum())
    return {"f1_micro": f1, "exact_match": (said == true).all(axis=1).mean()}


def of_numbers(logits, labels):
    labels = labels.astype(float)
    error = logits[:, 0] - labels
    r2 = 1 - (error**2).sum() / ((labels - labels.mean()) ** 2).sum()
    return {"mse": (error**2).mean(), "mae": np.abs(error).mean(), "r2": r2}


def of_tags(logits, labels):
    said, has_tag = logits.argmax(-1), labels != -100
    found = {
        name: {
            (row, *span)
            for row in range(len(labels))
            for span in spans_of([TAGS[code] for code in codes[row][has_tag[row]]])
        }
        for name, codes in (("said", said), ("true", labels))
    }
    both, num_said, num_true = len(found["said"] & found["true"]), len(found["said"]), len(found["true"])
    return {
        "accuracy": (said == labels)[has_tag].mean(),
        "precision": both / max(num_said, 1),
        "recall": both / max(num_true, 1),
        "f1": 2 * both / (num_said + num_true),
    }


WANTED = {"several": of_several, "numbers": of_numbers, "tags": of_tags}


@pytest.mark.parametrize("name", WANTED)
@pytest.mark.parametrize("num_rows", SIZES)
@pytest.mark.parametrize("size", ALONE_AND_UGLY)
def test_they_are_those_of_all_predictions_on_every_rank(in_worlds, name, num_rows, size):
    for rank in range(size):
        found = in_worlds[size, rank]["task_metrics"][name, num_rows]
        expected = WANTED[name](found["logits"], found["labels"])
        metrics = {metric: found["metrics"][f"eval_{metric}"] for metric in expected}
        assert metrics == pytest.approx(expected, rel=1e-5, abs=1e-6)
        assert found["metrics"]["eval_rows"] == num_rows
