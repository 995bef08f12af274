"""A column becomes classes 0, 1, ... with their names, or it is said why it cannot."""

from types import SimpleNamespace

import pyarrow as pa
import pytest

from tests.messages import unnamed
from train_func.errors import InvalidInput
from train_func.worker.inputs.findings import Findings
from train_func.worker.tasks import labels


def column(*values, type=None):
    return pa.chunked_array([pa.array(values, type=type)])


def encode(parts, **options):
    """The classes of each part, and notes."""
    findings = Findings()
    classes = labels.encode(parts, "stars", findings, **options)
    findings.refuse()
    return SimpleNamespace(**vars(classes), notes=tuple(findings.notes))


def encoded(*values, held_out=None, type=None, **options):
    parts = {"training": column(*values, type=type)}
    if held_out is not None:
        parts["held-out"] = column(*held_out, type=type)
    return encode(parts, **options)


def refusal(*values, **options):
    with pytest.raises(InvalidInput) as caught:
        encoded(*values, **options)
    assert caught.value.cause == "data"
    return str(caught.value)


@pytest.mark.parametrize(
    ("values", "names", "codes"),
    [
        ((1, 5, 3, 1, 10), ("1", "3", "5", "10"), [0, 2, 1, 0, 3]),
        ((0, 1, 1), ("0", "1"), [0, 1, 1]),
        (("pos", "neg", "pos"), ("neg", "pos"), [1, 0, 1]),
        ((1.0, 2.0, 1.0), ("1", "2"), [0, 1, 0]),
        ((True, False, True), ("False", "True"), [1, 0, 1]),
        ((-1, 1, 1), ("-1", "1"), [0, 1, 1]),
    ],
)
def test_values_become_classes_in_their_own_order_with_their_own_names(values, names, codes):
    classes = encoded(*values)
    assert classes.names == names
    assert classes.codes["training"].tolist() == codes
    assert classes.notes == ()


def test_classes_are_those_of_all_parts_together():
    classes = encoded(1, 2, 1, held_out=(2, 3))
    assert classes.names == ("1", "2", "3")
    assert classes.codes["held-out"].tolist() == [1, 2]


def test_dictionary_encoded_and_large_texts_are_texts():
    expected = encoded("b", "a", "b").codes["training"].tolist()
    for kind in (pa.dictionary(pa.int8(), pa.string()), pa.large_string()):
        assert encoded("b", "a", "b", type=kind).codes["training"].tolist() == expected


def test_given_names_belong_to_the_integers_and_fix_the_order_of_texts():
    assert encoded(1, 0, 1, names=("bad", "good")).names == ("bad", "good")
    classes = encoded("good", "bad", "good", names=("good", "bad"))
    assert (classes.names, classes.codes["training"].tolist()) == (("good", "bad"), [0, 1, 0])


def test_given_names_go_before_those_that_came_with_the_data():
    assert encoded(1, 0, 1, data_names=("neg", "pos")).names == ("neg", "pos")
    assert encoded(1, 0, 1, data_names=("neg", "pos"), names=("bad", "good")).names == ("bad", "good")


def test_a_name_without_rows_is_noted():
    classes = encoded(1, 0, 1, names=("bad", "good", "mixed"))
    (note,) = classes.notes
    assert unnamed(note, "'stars'", "'mixed'") == []


def test_null_labels_are_counted_and_placed():
    said = refusal(1, None, 0, None, held_out=(0, None))
    assert unnamed(said, "2 of 4 labels", "rows 2, 4", "1 of 2 labels") == []
    assert "1 of 3 labels" in refusal("a", " ", "b")
    assert "1 of 3 labels" in refusal("a", None, "b")
    assert "1 of 3 labels" in refusal("1", None, "0")
    assert "1 of 3 labels" in refusal(1.0, float("nan"), 0.0)
    assert "3 of 3 labels" in refusal(None, None, None, names=("bad", "good"))


@pytest.mark.parametrize("values", [(0, 1, 5), (0, 3, 1), (-2, 0, 1)])
def test_labels_out_of_the_range_of_their_names_are_refused(values):
    said = refusal(*values, names=("bad", "good"))
    assert unnamed(said, f"range {min(values)}-{max(values)}", "0-1", "2 names") == []


def test_texts_that_are_not_among_the_names_are_listed():
    said = refusal("good", "bad", "meh", names=("good", "bad"))
    assert unnamed(said, "'meh'", "labels=('good', 'bad')") == []


def test_one_class_leaves_nothing_to_learn():
    assert unnamed(refusal(1, 1, 1), 1, "one class") == []
    assert unnamed(refusal("a", "a"), "'a'", "one class") == []
    assert unnamed(refusal(1, 1, names=("bad", "good")), 1, "one class") == []


def test_a_column_with_a_value_per_row_looks_like_an_id():
    said = refusal(*range(7))
    assert unnamed(said, "7 different labels", "7 rows", "0, 1, 2, 3, 4 and 2 more") == []


@pytest.mark.parametrize(("values", "kind"), [(([1], [0]), "list<"), (({"a": 1}, {"a": 0}), "struct<")])
def test_other_types_are_refused_by_name(values, kind):
    assert f"type {kind}" in refusal(*values)


@pytest.mark.parametrize("values", [((1, 0), ("1", "0")), (("1", "0"), (1, 0)), ((1.0, 0.0), ("1", "0"))])
def test_numbers_of_one_part_and_texts_of_another_are_the_same_classes(values):
    training, held_out = values
    classes = encode({"training": column(*training), "held-out": column(*held_out)})
    assert classes.names == ("0", "1")
    assert {part: codes.tolist() for part, codes in classes.codes.items()} == {"training": [1, 0], "held-out": [1, 0]}


def test_texts_of_one_part_have_the_names_that_came_with_the_numbers_of_another():
    classes = encode({"training": column(1, 0, 1), "held-out": column("good")}, data_names=("bad", "good"))
    assert (classes.names, classes.codes["held-out"].tolist()) == (("bad", "good"), [1])


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (("01", "02", "10"), ("01", "02", "10")),
        (("1E2", "1E3", "2A4", "x"), ("1E2", "1E3", "2A4", "x")),
        (("2", "10", "1"), ("1", "2", "10")),
        (("true", "false"), ("false", "true")),
        (("None", "NA", "nan"), ("NA", "None", "nan")),
        (("inf", "-inf", "0"), ("-inf", "0", "inf")),
        (("18446744073709551616", "18446744073709551617"), ("18446744073709551616", "18446744073709551617")),
        (("2024-03-01", "2024-03-02"), ("2024-03-01", "2024-03-02")),
    ],
)
def test_classes_are_called_as_their_file_spells_them(values, names):
    classes = encoded(*values, *values)
    assert classes.names == names
    assert [names[code] for code in classes.codes["training"]] == [*values, *values]
    assert classes.notes == ()


def test_a_whole_number_of_a_column_of_floats_is_the_class_of_the_integer():
    classes = encoded("1", "2", "1", held_out=("1.0", "2.0"))
    assert (classes.names, classes.codes["held-out"].tolist()) == (("1", "2"), [0, 1])


@pytest.mark.parametrize("values", [("0", "1"), ("0.0", "1.0"), (" 0", "1 "), (False, True)])
def test_given_names_belong_to_the_integers_however_they_are_spelled(values):
    classes = encoded(*values, *values, names=("bad", "good"))
    assert (classes.names, classes.codes["training"].tolist()) == (("bad", "good"), [0, 1, 0, 1])


@pytest.mark.parametrize("values", [(0, 1), ("0", "1")])
@pytest.mark.parametrize("given", [("1", "2"), ("2", "3")])
def test_names_that_are_other_numbers_than_the_labels_are_refused(values, given):
    assert unnamed(refusal(*values, *values, names=given), "0", given[1]) == []


def test_names_of_the_run_put_the_names_that_came_with_the_data_into_their_order():
    classes = encoded(0, 1, 1, data_names=("neg", "pos"), names=("pos", "neg"))
    assert (classes.names, classes.codes["training"].tolist()) == (("pos", "neg"), [1, 0, 0])
    assert encoded(0, 1, 1, data_names=("1", "2")).codes["training"].tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    "values", [(0.5, 1.0, 2.25), ("0.5", "1.0", "2.25"), ("1,5", "2,5", "3"), (0.0, 1.0, float("inf"))]
)
def test_fractions_are_regression_unless_they_are_named(values):
    assert unnamed(refusal(*values, *values), str(values[0]), "regression") == []
    if isinstance(values[0], str):
        assert encoded(*values, *values, names=values).codes["training"].tolist() == [0, 1, 2] * 2


@pytest.mark.parametrize("given", [("1", "0"), ("0", "1")])
@pytest.mark.parametrize("values", [(0, 1), ("0", "1"), ("0.0", "1.0")])
def test_a_label_is_the_class_of_its_name_whatever_the_order_of_the_names(values, given):
    classes = encoded(*values, *values, names=given)
    assert [given[code] for code in classes.codes["training"]] == ["0", "1"] * 2


def test_a_thousand_classes_are_more_than_a_column_of_classes_has():
    assert "1001 different labels" in refusal(*[i % 1001 for i in range(20_020)])
