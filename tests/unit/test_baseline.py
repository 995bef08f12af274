"""A model that is worse than one answer for every row is told of, and no other."""

import datasets
import pytest

from tests.messages import unnamed
from train_func.worker.publish.model import below_baseline
from train_func.worker.tasks.metrics import Accuracy, NumberErrors

NUMBERS = [0.0, 100.0, 200.0, 300.0]  # of the held-out rows (50, 150) the mean squared distance from 150 is 5000
CLASSES = [0, 0, 0, 1]


def rows(labels):
    return datasets.Dataset.from_dict({"label": labels})


@pytest.mark.parametrize(
    ("metric", "learnt", "true", "metrics", "named"),
    [
        (NumberErrors(), NUMBERS, [50.0, 150.0], {"mse": 18634.0}, ["1.863e+04", 5000]),
        (NumberErrors(), NUMBERS, [50.0, 150.0], {"mse": 4999.0}, None),
        (NumberErrors(), NUMBERS, [50.0, 150.0], {}, None),
        (Accuracy(), CLASSES, [0, 0, 0, 1], {"accuracy": 0.5}, ["0.500", "0.750"]),
        (Accuracy(), CLASSES, [0, 0, 0, 1], {"accuracy": 0.75}, None),
        (Accuracy(), [[0, 1]], [[0, 1]], {"accuracy": 0.0}, None),
        (object(), CLASSES, [0, 0, 0, 1], {"accuracy": 0.0}, None),
    ],
)
def test_what_is_worse_than_the_best_single_answer_is_told(metric, learnt, true, metrics, named):
    note = below_baseline(metric, rows(learnt), rows(true), metrics)
    assert (note == "") is (named is None)
    assert unnamed(note, *(named or [])) == []


def test_rows_without_labels_are_compared_with_nothing():
    assert below_baseline(Accuracy(), datasets.Dataset.from_dict({"x": [1]}), rows([1]), {"accuracy": 0.0}) == ""
