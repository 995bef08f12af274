"""Metrics of tasks: summed up batch by batch, whether a greater one is better, and what is no better than guessing."""

import datasets
import numpy as np
import pytest
import torch

from tests.messages import unnamed
from train_func.worker.publish.model import below_baseline, plain_columns
from train_func.worker.tasks.streaming_metrics import (
    Accuracy,
    LabelScores,
    NumberErrors,
    TagScores,
    TokenScores,
    spans_of,
)

SIZES = [101, 40, 7]


def by_batches(metric, logits, labels, batch_size=8):
    """The values from the sums of all batches, as several ranks make them."""
    parts = [
        metric.count(logits[at : at + batch_size], labels[at : at + batch_size])
        for at in range(0, len(labels), batch_size)
    ]
    return metric.values({name: sum(part[name] for part in parts) for name in parts[0]}, len(labels))


@pytest.mark.parametrize("num_rows", SIZES)
def test_several_labels_have_f1_over_all_of_them_and_exact_matches(num_rows):
    draw = np.random.default_rng(num_rows)
    logits, labels = draw.normal(size=(num_rows, 3)), (draw.random((num_rows, 3)) < 0.3).astype(np.float32)
    both = wrong = exact = 0
    for row, of_row in zip(logits, labels, strict=True):
        both += sum(1 for value, is_true in zip(row, of_row, strict=True) if value > 0 and is_true)
        wrong += sum(1 for value, is_true in zip(row, of_row, strict=True) if (value > 0) != bool(is_true))
        exact += all((value > 0) == bool(is_true) for value, is_true in zip(row, of_row, strict=True))
    found = by_batches(LabelScores(), torch.tensor(logits), torch.tensor(labels))
    assert found == pytest.approx({"f1_micro": 2 * both / (2 * both + wrong), "exact_match": exact / num_rows})


def test_where_nothing_is_predicted_and_nothing_true_f1_is_nought_and_all_match():
    found = by_batches(LabelScores(), -torch.ones(7, 2), torch.zeros(7, 2))
    assert found == {"f1_micro": 0.0, "exact_match": 1.0}


@pytest.mark.parametrize("num_rows", SIZES)
@pytest.mark.parametrize("offset", [0, 1000])
def test_numbers_have_their_squared_and_absolute_errors_and_r2(num_rows, offset):
    draw = np.random.default_rng(num_rows)
    true = (draw.normal(size=num_rows) + offset).astype(np.float32).astype(np.float64)
    said = true + 0.3 * draw.normal(size=num_rows)
    found = by_batches(NumberErrors(), torch.tensor(said[:, None]), torch.tensor(true))
    squares = np.sum((said - true) ** 2)
    expected = {
        "mse": squares / num_rows,
        "mae": np.mean(np.abs(said - true)),
        "r2": 1 - squares / np.sum((true - true.mean()) ** 2),
    }
    assert found == pytest.approx(expected, rel=1e-6)


def test_where_all_numbers_are_equal_there_is_no_r2():
    found = by_batches(NumberErrors(), torch.ones(7, 1), torch.full((7,), 0.1))
    assert set(found) == {"mse", "mae"}


@pytest.mark.parametrize(
    ("metric", "logits", "labels"),
    [
        (LabelScores(), torch.ones(7, 3), torch.ones(7)),
        (LabelScores(), torch.ones(7, 3), None),
        (NumberErrors(), torch.ones(7, 3), torch.ones(7)),
        (NumberErrors(), {"several": torch.ones(7)}, torch.ones(7)),
    ],
)
def test_predictions_of_another_shape_have_no_such_metric(metric, logits, labels):
    assert metric.count(logits, labels) is None


@pytest.mark.parametrize(
    ("tags", "spans"),
    [
        ("O B-PER I-PER O B-LOC", [("PER", 1, 2), ("LOC", 4, 4)]),
        ("B-PER B-PER I-PER", [("PER", 0, 0), ("PER", 1, 2)]),
        ("I-PER I-PER O", [("PER", 0, 1)]),
        ("B-PER I-LOC I-LOC", [("PER", 0, 0), ("LOC", 1, 2)]),
        ("B I O I", [("", 0, 1), ("", 3, 3)]),
        ("", []),
    ],
)
def test_spans_are_read_as_seqeval_reads_them(tags, spans):
    assert list(spans_of(tags.split())) == spans


NAMES = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")


def as_logits(codes):
    return torch.nn.functional.one_hot(torch.tensor(codes), len(NAMES)).float()


def test_precision_recall_and_f1_are_those_counted_by_hand():
    """Two sentences, padded: of three true spans one is found, one has a wrong end, one is missed; one is made up."""
    true = [[1, 2, 0, 3, -100], [-100, 3, 4, -100, 0]]
    said = [[1, 2, 0, 0, 3], [2, 3, 0, 4, 1]]
    found = by_batches(TagScores(NAMES), as_logits(said), torch.tensor(true))
    assert found == pytest.approx({"accuracy": 4 / 7, "precision": 1 / 3, "recall": 1 / 3, "f1": 1 / 3})


@pytest.mark.parametrize("num_rows", SIZES)
def test_over_all_batches_they_are_those_of_all_sentences_at_once(num_rows):
    draw = np.random.default_rng(num_rows)
    true = draw.integers(0, 5, (num_rows, 9))
    true[draw.random(true.shape) < 0.3] = -100
    said = np.where(draw.random(true.shape) < 0.6, true.clip(0), draw.integers(0, 5, true.shape))
    spans = {"true": set(), "said": set()}
    for row in range(num_rows):
        for name, codes in (("true", true), ("said", said)):
            words = [NAMES[code] for code in codes[row][true[row] != -100]]
            spans[name] |= {(row, *span) for span in spans_of(words)}
    both = len(spans["true"] & spans["said"])
    found = by_batches(TagScores(NAMES), as_logits(said), torch.tensor(true))
    assert found["accuracy"] == pytest.approx((said == true)[true != -100].mean())
    assert found["precision"] == pytest.approx(both / len(spans["said"]))
    assert found["recall"] == pytest.approx(both / len(spans["true"]))
    assert found["f1"] == pytest.approx(2 * both / (len(spans["said"]) + len(spans["true"])))


def test_tags_that_mark_no_spans_have_an_accuracy_alone():
    labels = torch.tensor([[0, 1, -100]])
    assert by_batches(TagScores(("NOUN", "VERB")), torch.zeros(1, 3, 2), labels) == {"accuracy": 0.5}
    assert set(by_batches(TagScores(("O", "B-PER")), torch.zeros(1, 3, 2), labels)) > {"f1"}
    assert TagScores(NAMES).count(torch.zeros(1, 3, 2), labels) is None


@pytest.mark.parametrize(
    ("metric", "logits", "labels", "columns"),
    [
        (
            Accuracy(),
            [[0.0, 0.0, -99.0], [0.0, 99.0, 0.0]],
            [1, 1],
            {"expected": [1, 1], "predicted": [0, 1], "confidence": [0.5, 1.0]},
        ),
        (
            LabelScores(),
            [[0.0, -99.0], [99.0, 99.0]],
            [[1.0, 0.0], [1.0, 1.0]],
            {
                "expected": [[0], [0, 1]],
                "predicted": [[], [0, 1]],
                "confidence": [0.5, 1.0],
            },
        ),
        (NumberErrors(), [[1.5], [2.5]], [1.0, 2.5], {"expected": [1.0, 2.5], "predicted": [1.5, 2.5]}),
        (
            TagScores(["O", "B-PER"]),
            [[[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]],
            [[0, 0, -100]],
            {"tokens": [2], "right": [1]},
        ),
        (TokenScores(), [[6.0, 3.0, 2.0]], [[1, 2, 3]], {"loss": [2.0], "tokens": [3], "right": [2]}),
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "count") and not isinstance(value, list) else "",
)
def test_of_each_row_a_metric_tells_what_was_predicted(metric, logits, labels, columns):
    found = metric.predictions(torch.tensor(logits), torch.tensor(labels))
    assert plain_columns({name: column.numpy() for name, column in found.items()}) == columns


def rows(labels):
    return datasets.Dataset.from_dict({"x": [1]} if labels is None else {"label": labels})


NUMBERS = [0.0, 100.0, 200.0, 300.0]  # of the held-out rows (50, 150) the mean squared distance from 150 is 5000
CLASSES = [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("metric", "learnt", "true", "metrics", "facts"),
    [
        (NumberErrors(), NUMBERS, [50.0, 150.0], {"mse": 18634.0}, ["1.863e+04", 5000]),
        (NumberErrors(), NUMBERS, [50.0, 150.0], {"mse": 4999.0}, None),
        (Accuracy(), CLASSES, [0, 0, 0, 1], {"accuracy": 0.5}, ["0.500", "0.750"]),
        (Accuracy(), CLASSES, [0, 0, 0, 1], {"accuracy": 0.75}, ["0.750"]),
        (Accuracy(), CLASSES, [0, 0, 0, 1], {"accuracy": 1.0}, None),
        (Accuracy(), CLASSES, [0, 0, 0, 0], {"accuracy": 1.0}, None),
        (Accuracy(), [[0, 1]], [[0, 1]], {"accuracy": 0.0}, None),
    ],
)
def test_a_model_no_better_than_the_best_single_answer_is_noted_and_no_other(metric, learnt, true, metrics, facts):
    note = below_baseline(metric, rows(learnt), rows(true), metrics)
    assert (note == "") is (facts is None)
    assert unnamed(note, *(facts or [])) == []
