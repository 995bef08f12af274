"""A column becomes numbers to predict, or it is said in which rows it cannot."""

import decimal

import pyarrow as pa
import pytest

from tests.messages import unnamed
from train_func.errors import InvalidInput
from train_func.worker.inputs.findings import Findings
from train_func.worker.tasks import targets


def encode_numbers(parts, column):
    """The numbers of each part, and notes."""
    findings = Findings()
    numbers = targets.encode_numbers(parts, column, findings)
    findings.refuse()
    return numbers, findings.notes


def column(*values):
    return pa.chunked_array([pa.array(values)])


@pytest.mark.parametrize("values", [(1, 2, 5), (1.0, 2.0, 5.0), tuple(map(decimal.Decimal, ("1.0", "2.0", "5.0")))])
def test_numbers_of_any_type_are_kept_as_they_are(values):
    numbers, notes = encode_numbers({"training": column(*values), "held-out": column(values[1])}, "stars")
    assert numbers["training"].tolist() == [1, 2, 5]
    assert numbers["held-out"].tolist() == [2]
    assert (numbers["training"].dtype, notes) == ("float32", [])


def test_texts_that_are_numbers_are_read_as_they_are_spelled():
    parts = {"training": column("1.50", "+2", " -3 ", "1E1", ".5", "007"), "held-out": column(2)}
    numbers, notes = encode_numbers(parts, "stars")
    assert numbers["training"].tolist() == [1.5, 2, -3, 10, 0.5, 7]
    assert (numbers["held-out"].tolist(), notes) == ([2], [])


def test_numbers_far_from_the_scale_of_a_new_head_are_noted():
    _, (note,) = encode_numbers({"training": column(1, -250_000)}, "price")
    assert unnamed(note, "'price'", "-250000", "frame['price'] / 250000") == []


@pytest.mark.parametrize(
    ("values", "facts"),
    [
        ((1.5, None, float("nan"), float("inf")), ["3 values", "None", "rows 2, 3, 4"]),
        ((1.5, 1e300), ["1 value", "1e+300", "row 2"]),
        (("1.5", "3,5", ""), ["2 values", "'3,5'", "rows 2, 3"]),
        (("1.5", "nan", "inf", "1e300"), ["3 values", "'nan'", "rows 2, 3, 4"]),
        (("1.5", "1e300"), ["1 value", "'1e300'", "row 2"]),
        (("1.5", "2024-03-01", "NA"), ["2 values", "'2024-03-01'", "rows 2, 3"]),
        ((True, False), ["bool"]),
        (([1.0], [2.0]), ["list"]),
        ((3, 3, 3), ["3", "nothing to learn"]),
    ],
)
def test_what_is_no_number_is_refused_with_row_and_value(values, facts):
    with pytest.raises(InvalidInput) as caught:
        encode_numbers({"training": column(*values)}, "stars")
    assert caught.value.cause == "data"
    assert [fact for fact in ["'stars'", *facts] if fact not in str(caught.value)] == []


def test_faults_of_both_parts_come_together():
    with pytest.raises(InvalidInput) as caught:
        encode_numbers({"training": column(1, None), "held-out": column(None, 2)}, "stars")
    training, held_out = caught.value.faults
    assert unnamed(training, "training", "row 2") == []
    assert unnamed(held_out, "held-out", "row 1") == []
