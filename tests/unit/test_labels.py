"""A column becomes classes 0, 1, ... with their names, or it is said why it cannot."""

import pyarrow as pa
import pytest

from train_func.errors import InvalidInput
from train_func.worker.tasks.labels import encode


def column(*values, type=None):
    return pa.chunked_array([pa.array(values, type=type)])


def encoded(*values, held_out=None, type=None, **options):
    parts = {"training": column(*values, type=type)}
    if held_out is not None:
        parts["held-out"] = column(*held_out, type=type)
    return encode(parts, "stars", **options)


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
    labels = encoded(*values)
    assert labels.names == names
    assert labels.codes["training"].tolist() == codes
    assert labels.notes == ()


def test_classes_are_those_of_all_parts_together():
    labels = encoded(1, 2, 1, held_out=(2, 3))
    assert labels.names == ("1", "2", "3")
    assert labels.codes["held-out"].tolist() == [1, 2]


def test_dictionary_encoded_and_large_texts_are_texts():
    expected = encoded("b", "a", "b").codes["training"].tolist()
    for kind in (pa.dictionary(pa.int8(), pa.string()), pa.large_string()):
        assert encoded("b", "a", "b", type=kind).codes["training"].tolist() == expected


def test_given_names_belong_to_the_integers_and_fix_the_order_of_texts():
    assert encoded(1, 0, 1, given=("bad", "good")).names == ("bad", "good")
    labels = encoded("good", "bad", "good", given=("good", "bad"))
    assert (labels.names, labels.codes["training"].tolist()) == (("good", "bad"), [0, 1, 0])


def test_given_names_go_before_those_that_came_with_the_data():
    assert encoded(1, 0, 1, kept=("neg", "pos")).names == ("neg", "pos")
    assert encoded(1, 0, 1, kept=("neg", "pos"), given=("bad", "good")).names == ("bad", "good")


def test_a_name_without_rows_is_noted():
    labels = encoded(1, 0, 1, given=("bad", "good", "mixed"))
    assert labels.notes == ("column 'stars': no row has the label 'mixed': the model cannot learn it",)


def test_names_alike_but_for_case_and_spaces_are_noted():
    (note,) = encoded("Pos", "pos ", "neg", "neg").notes
    assert "['Pos', 'pos ']" in note
    assert "differ only in case or spaces" in note


def test_null_labels_are_counted_and_placed():
    said = refusal(1, None, 0, None, held_out=(0, None))
    assert "2 of 4 labels of the training rows are null or empty, first in rows 2, 4 (the first data row is 1)" in said
    assert "1 of 2 labels of the held-out rows are null or empty, first in rows 2" in said
    assert "1 of 3 labels" in refusal("a", " ", "b")
    assert "1 of 3 labels" in refusal("a", None, "b")
    assert "1 of 3 labels" in refusal("1", None, "0")
    assert "1 of 3 labels" in refusal(1.0, float("nan"), 0.0)
    assert "3 of 3 labels" in refusal(None, None, None, given=("bad", "good"))


def test_labels_from_1_to_5_for_five_names_look_one_based():
    said = refusal(1, 2, 3, 4, 5, 5, given=("a", "b", "c", "d", "e"))
    assert "column 'stars': label range 1-5, expected 0-4 for the 5 names ('a', 'b', 'c', 'd', 'e')" in said
    assert "looks 1-based: subtract 1, or leave labels out" in said


@pytest.mark.parametrize("values", [(0, 1, 5), (0, 3, 1), (-2, 0, 1)])
def test_labels_out_of_the_range_of_their_names_are_refused(values):
    said = refusal(*values, given=("bad", "good"))
    assert f"label range {min(values)}-{max(values)}, expected 0-1 for the 2 names" in said
    assert "1-based" not in said


def test_texts_that_are_not_among_the_names_are_listed():
    said = refusal("good", "bad", "meh", given=("good", "bad"))
    assert "labels 'meh' are not among labels=('good', 'bad')" in said


def test_several_faults_of_one_column_are_said_together():
    said = refusal(1, 2, None, 2, given=("a", "b"))
    assert "1 of 4 labels" in said
    assert "looks 1-based" in said


def test_a_split_whose_labels_are_secret_is_named():
    assert "every label is -1, the mark of a split whose labels are kept secret" in refusal(-1, -1, -1)


@pytest.mark.parametrize("options", [{}, {"given": ("a", "b")}, {"kept": ("a", "b")}])
def test_rows_marked_as_unlabelled_among_others_are_refused(options):
    said = refusal(-1, 0, 1, 1, **options)
    assert "labels -1, 0, 1: -1 marks rows without a label; remove these rows" in said
    assert "where -1 is a class of its own, write the classes as texts" in said


@pytest.mark.parametrize("values", [(-100, -100), (-100, 0, 1)])
def test_labels_the_loss_ignores_leave_nothing_to_learn(values):
    assert "-100, which the loss ignores: nothing to learn" in refusal(*values)


def test_fractions_are_regression():
    said = refusal(0.5, 1.0, 2.25)
    assert "labels are fractions (0.5, 2.25): that is regression, and here are classes" in said


def test_one_class_leaves_nothing_to_learn():
    assert "every label is 1: one class leaves nothing to learn" in refusal(1, 1, 1)
    assert "every label is 'a': one class" in refusal("a", "a")
    assert "every label is 1: one class" in refusal(1, 1, given=("bad", "good"))


def test_a_column_with_a_value_per_row_looks_like_an_id():
    said = refusal(*range(7))
    assert (
        "7 different labels in 7 rows (0, 1, 2, 3, 4 and 2 more): that looks like an id or a number to predict" in said
    )


def test_hundreds_of_rare_values_are_no_classes_and_hundreds_of_frequent_ones_are():
    assert "300 different labels in 900 rows" in refusal(*[i % 300 for i in range(900)])
    assert len(encoded(*[i % 300 for i in range(3300)]).names) == 300
    assert "1001 different labels" in refusal(*[i % 1001 for i in range(20_020)])


def test_few_classes_need_only_be_repeated_once():
    assert len(encoded(*[i % 20 for i in range(21)]).names) == 20
    assert "21 different labels in 42 rows" in refusal(*[i % 21 for i in range(42)])


@pytest.mark.parametrize(("values", "kind"), [(([1], [0]), "list<"), (({"a": 1}, {"a": 0}), "struct<")])
def test_other_types_are_refused_by_name(values, kind):
    said = refusal(*values)
    assert f"labels are of type {kind}" in said
    assert "one whole number or one text per row is expected" in said


def test_two_parts_of_different_types_are_refused():
    with pytest.raises(InvalidInput, match="labels are int64 in the training rows and string in the held-out rows"):
        encode({"training": column(1, 0), "held-out": column("1", "0")}, "stars")


def test_a_slip_of_the_pen_among_numbers_is_no_class():
    texts = [str(i % 5 + 1) for i in range(38)] + ["five", "4.5"]
    with pytest.raises(InvalidInput, match="38 of 40 labels are whole numbers, 2 are not: 'five' in row 39 of the"):
        encode({"training": pa.chunked_array([texts])}, "stars")
    meant = encode({"training": pa.chunked_array([["1", "2", "none"] * 7])}, "stars")
    assert meant.names == ("1", "2", "none")
