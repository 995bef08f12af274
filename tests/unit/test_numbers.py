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
        ((1.5, None, float("nan"), float("inf")), ["3 values", "None in row 2", "nan in row 3", "inf in row 4"]),
        ((1.5, 1e300), ["1 value", "1e+300 in row 2"]),
        (("1.5", "3,5", ""), ["2 values", "'3,5' in row 2", "'' in row 3"]),
        (("1.5", "nan", "inf", "1e300"), ["3 values", "'nan' in row 2", "'inf' in row 3"]),
        (("1.5", "1e300"), ["1 value", "'1e300' in row 2"]),
        (("1.5", "1_000", "2024-03-01", "NA"), ["3 values", "'1_000' in row 2", "'2024-03-01' in row 3"]),
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


@pytest.mark.parametrize(
    ("values", "are_classes"),
    [(("positive", "negative", None), True), (("1.5", "good"), False), ((None, "7 EUR"), False)],
)
def test_texts_without_any_digit_are_said_to_look_like_classes(values, are_classes):
    with pytest.raises(InvalidInput) as refused:
        encode_numbers({"training": column(*values)}, "stars")
    assert ("problem_type" in str(refused.value)) is are_classes


def test_numbers_with_a_decimal_comma_are_read_where_nothing_else_can_be_meant():
    held_out = {"text": column("2,0"), "number": column(2)}
    for given in held_out.values():
        parts = {"training": column("3,5", " 1,234", "-2", "0,125"), "held-out": given}
        numbers, (note,) = encode_numbers(parts, "stars")
        assert numbers["training"].tolist() == [3.5, pytest.approx(1.234), -2, 0.125]
        assert numbers["held-out"].tolist() == [2]
        assert "'stars'" in note


@pytest.mark.parametrize("values", [("1,234", "2"), ("1.234,5", "2,5"), ("3,5", "2.5"), ("3,5", "good"), ("3,5", "")])
def test_commas_that_may_mean_something_else_are_refused_with_the_remedy(values):
    with pytest.raises(InvalidInput) as refused:
        encode_numbers({"training": column(*values)}, "stars")
    assert unnamed(refused.value, "'stars'", "decimal point") == []


def test_faults_of_both_parts_come_together():
    with pytest.raises(InvalidInput) as caught:
        encode_numbers({"training": column(1, None), "held-out": column(None, 2)}, "stars")
    training, held_out = caught.value.faults
    assert unnamed(training, "training", "row 2") == []
    assert unnamed(held_out, "held-out", "row 1") == []
