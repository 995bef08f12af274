"""What a function returns or reports becomes plain JSON; what does not is named, and the rest of a result is kept."""

import datetime
import json
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.messages import refuses, unnamed
from train_func import InvalidInput
from train_func.worker.rank.json_values import (
    LARGEST_ARRAY,
    LARGEST_INTEGER,
    plain_result,
    report_arguments,
    to_python,
)


@dataclass
class Score:
    loss: float
    model: object


class Color(str, Enum):  # noqa: UP042 - whose str() is not its value
    RED = "red"


KEPT = [
    (None, {}),
    (
        {"loss": 0.2, "epochs": 3, "done": True, "name": "a", "none": None},
        {"loss": 0.2, "epochs": 3, "done": True, "name": "a", "none": None},
    ),
    (0.2, {"returned": 0.2}),
    ("text", {"returned": "text"}),
    ([1, (2, 3)], {"returned": [1, [2, 3]]}),
    ({"a": np.float32(0.5), "b": np.int64(7), "c": np.bool_(True)}, {"a": 0.5, "b": 7, "c": True}),
    ({"a": np.arange(3), "b": np.ones((2, 1))}, {"a": [0, 1, 2], "b": [[1.0], [1.0]]}),
    (
        {"a": torch.tensor(0.5, requires_grad=True), "b": torch.ones(2, dtype=torch.bfloat16)},
        {"a": 0.5, "b": [1.0, 1.0]},
    ),
    (
        {1: "one", "path": Path("a/b"), "day": datetime.date(2026, 1, 2)},
        {"1": "one", "path": "a/b", "day": "2026-01-02"},
    ),
    ({"color": Color.RED, Color.RED: [Color.RED]}, {"color": "red", "red": ["red"]}),
]


@pytest.mark.parametrize(("value", "found"), KEPT, ids=repr)
def test_what_is_json_or_can_be_is_kept(value, found):
    assert plain_result(value) == (found, [])


LEFT_OUT = [
    ({"loss": 0.2, "model": torch.nn.Linear(1, 1)}, {"loss": 0.2}, ["model (Linear) is left out"]),
    (object(), {}, ["returned (object) is left out"]),
    ({"a": {"b": [1, object()]}}, {"a": {"b": [1, None]}}, ["a.b[1] (object) is None"]),
    (
        {"loss": float("nan"), "best": float("inf")},
        {"loss": None, "best": None},
        ["loss (nan) is None", "best (inf) is None"],
    ),
    ({(1, 2): 3, "kept": 4}, {"kept": 4}, ["(1, 2) (its name is of tuple) is left out"]),
    ({"a": {1: "a", "1": "b"}}, {"a": {"1": "a"}}, ["a.1 (another value has its name) is left out"]),
    ({"s": {1, 2}, "n": 1}, {"n": 1}, ["s (set) is left out"]),
    ({"big": np.zeros(LARGEST_ARRAY + 1), "n": 1}, {"n": 1}, ["big (ndarray) is left out"]),
    ({"n": 10**5000, "m": 10**300}, {"m": 10**300}, ["n (an int of 16610 bits) is left out"]),
    (Score(0.5, object()), {"returned": {"loss": 0.5}}, ["returned.model (object) is left out"]),
]


@pytest.mark.parametrize(("value", "found", "left_out"), LEFT_OUT, ids=[str(of) for _, _, of in LEFT_OUT])
def test_what_is_not_is_named_and_the_rest_is_kept(value, found, left_out):
    assert plain_result(value) == (found, left_out)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_integer_that_is_kept_can_be_written_and_read(sign):
    found, left_out = plain_result({"n": sign * (LARGEST_INTEGER - 1)})
    assert json.loads(json.dumps(found)) == {"n": sign * (LARGEST_INTEGER - 1)}
    assert left_out == []
    assert plain_result({"n": sign * LARGEST_INTEGER})[0] == {}


def test_a_value_that_holds_itself_ends():
    value: dict[str, object] = {"n": 1}
    value["self"] = value
    found, left_out = plain_result(value)
    assert found["n"] == 1
    assert left_out
    json.dumps(found, allow_nan=False)


def test_metrics_become_numbers_and_lists_and_keep_what_is_not_finite():
    metrics = {"f1": np.float32(0.5), "of": [np.int64(3), (0, torch.tensor([4]))], "half": torch.ones(2).bfloat16()}
    assert to_python(metrics) == {"f1": 0.5, "of": [3, [0, [4]]], "half": [1.0, 1.0]}
    assert np.isnan(to_python({"loss": np.float64("nan")})["loss"])


def test_numbers_of_any_library_are_reported_as_plain_ones():
    given = {
        "loss": torch.tensor(0.5, requires_grad=True),
        "one": torch.ones(1, 1, dtype=torch.bfloat16),
        "numpy": np.float32(0.25),
        "count": np.int64(7),
        "part": Fraction(1, 2),
        "right": True,
    }
    number, found = report_arguments(np.int32(3), given)
    assert (type(number), number) == (int, 3)
    assert found == {"loss": 0.5, "one": 1.0, "numpy": 0.25, "count": 7, "part": 0.5, "right": 1}
    assert {type(of) for of in found.values()} == {float, int}


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("abc", "'abc'"),
        (torch.zeros(2), "(2,)"),
        (np.zeros((2, 1)), "(2, 1)"),
        (None, "None"),
        ([0.5], "[0.5]"),
        (1j, "1j"),
    ],
)
def test_what_is_no_number_is_refused_by_its_name(value, named):
    with pytest.raises(InvalidInput) as refused:
        report_arguments(1, {"loss": 0.5, "score": value, "other": value})
    assert refused.value.cause == "code"
    assert len(refused.value.faults) == 2
    assert unnamed(refused.value.faults[0], "score", named) == []


@pytest.mark.parametrize("step", ["3", 2.5, None, float("nan")])
def test_a_step_that_is_no_whole_number_is_refused(step):
    with refuses("step"):
        report_arguments(step, {"loss": 0.5})
