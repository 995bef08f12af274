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


def test_names_alike_but_for_case_and_spaces_are_noted():
    (note,) = encoded("Pos", "pos ", "neg", "neg").notes
    assert "['Pos', 'pos ']" in note


def test_null_labels_are_counted_and_placed():
    said = refusal(1, None, 0, None, held_out=(0, None))
    assert unnamed(said, "2 of 4 labels", "rows 2, 4", "1 of 2 labels") == []
    assert "1 of 3 labels" in refusal("a", " ", "b")
    assert "1 of 3 labels" in refusal("a", None, "b")
    assert "1 of 3 labels" in refusal("1", None, "0")
    assert "1 of 3 labels" in refusal(1.0, float("nan"), 0.0)
    assert "3 of 3 labels" in refusal(None, None, None, names=("bad", "good"))


def test_labels_from_1_to_5_for_five_names_look_one_based():
    said = refusal(1, 2, 3, 4, 5, 5, names=("a", "b", "c", "d", "e"))
    assert unnamed(said, "column 'stars'", "1-5", "0-4", "('a', 'b', 'c', 'd', 'e')", "1-based") == []


@pytest.mark.parametrize("values", [(0, 1, 5), (0, 3, 1), (-2, 0, 1)])
def test_labels_out_of_the_range_of_their_names_are_refused(values):
    said = refusal(*values, names=("bad", "good"))
    assert unnamed(said, f"range {min(values)}-{max(values)}", "0-1", "2 names") == []
    assert "1-based" not in said


def test_texts_that_are_not_among_the_names_are_listed():
    said = refusal("good", "bad", "meh", names=("good", "bad"))
    assert unnamed(said, "'meh'", "labels=('good', 'bad')") == []


def test_several_faults_of_one_column_are_said_together():
    said = refusal(1, 2, None, 2, names=("a", "b"))
    assert "1 of 4 labels" in said
    assert "looks 1-based" in said


def test_a_split_whose_labels_are_secret_is_named():
    assert unnamed(refusal(-1, -1, -1), "every label is -1", "split") == []


@pytest.mark.parametrize("options", [{}, {"names": ("a", "b")}, {"data_names": ("a", "b")}])
def test_rows_marked_as_unlabelled_among_others_are_refused(options):
    said = refusal(-1, 0, 1, 1, **options)
    assert unnamed(said, "labels -1, 0, 1") == []


@pytest.mark.parametrize("values", [(-100, -100), (-100, 0, 1)])
def test_labels_the_loss_ignores_leave_nothing_to_learn(values):
    assert unnamed(refusal(*values), -100, "loss") == []


def test_fractions_are_regression():
    said = refusal(0.5, 1.0, 2.25)
    assert unnamed(said, "(0.5, 2.25)", "regression") == []


def test_numbers_with_a_decimal_comma_are_no_classes_unless_they_are_named():
    values = ("1,5", "2,5", "3", "1,5", "2,5", "3")
    assert unnamed(refusal(*values), "'1,5'", "regression", "labels=") == []
    assert encoded(*values, names=("1,5", "2,5", "3")).codes["training"].tolist() == [0, 1, 2] * 2


def test_one_class_leaves_nothing_to_learn():
    assert unnamed(refusal(1, 1, 1), 1, "one class") == []
    assert unnamed(refusal("a", "a"), "'a'", "one class") == []
    assert unnamed(refusal(1, 1, names=("bad", "good")), 1, "one class") == []


def test_a_column_with_a_value_per_row_looks_like_an_id():
    said = refusal(*range(7))
    assert unnamed(said, "7 different labels", "7 rows", "0, 1, 2, 3, 4 and 2 more") == []


def test_hundreds_of_rare_values_are_no_classes_and_hundreds_of_frequent_ones_are():
    assert unnamed(refusal(*[i % 300 for i in range(900)]), "300 different labels", "900 rows") == []
    assert len(encoded(*[i % 300 for i in range(3300)]).names) == 300
    assert "1001 different labels" in refusal(*[i % 1001 for i in range(20_020)])


def test_few_classes_need_only_be_repeated_once():
    assert len(encoded(*[i % 20 for i in range(21)]).names) == 20
    assert unnamed(refusal(*[i % 21 for i in range(42)]), "21 different labels", "42 rows") == []


@pytest.mark.parametrize(("values", "kind"), [(([1], [0]), "list<"), (({"a": 1}, {"a": 0}), "struct<")])
def test_other_types_are_refused_by_name(values, kind):
    assert f"type {kind}" in refusal(*values)


@pytest.mark.parametrize("values", [((1, 0), ("1", "0")), (("1", "0"), (1, 0)), ((1.0, 0.0), ("1", "0"))])
def test_numbers_of_one_part_and_texts_of_another_are_the_same_classes(values):
    training, held_out = values
    classes = encode({"training": column(*training), "held-out": column(*held_out)}, spelled=True)
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
        (("2.0", "10.0", "1.0"), ("1.0", "2.0", "10.0")),
        (("true", "false"), ("false", "true")),
        (("None", "NA", "nan"), ("NA", "None", "nan")),
        (("inf", "-inf", "0"), ("-inf", "0", "inf")),
        (("18446744073709551616", "18446744073709551617"), ("18446744073709551616", "18446744073709551617")),
        (("2024-03-01", "2024-03-02"), ("2024-03-01", "2024-03-02")),
    ],
)
def test_classes_are_called_as_their_file_spells_them(values, names):
    classes = encoded(*values, *values, spelled=True)
    assert classes.names == names
    assert [names[code] for code in classes.codes["training"]] == [*values, *values]
    assert classes.notes == ()


def test_a_whole_number_of_a_column_of_floats_is_the_class_of_the_integer():
    classes = encoded("1", "2", "1", held_out=("1.0", "2.0"), spelled=True)
    assert (classes.names, classes.codes["held-out"].tolist()) == (("1", "2"), [0, 1])
    (note,) = classes.notes
    assert unnamed(note, "1.0", "2.0") == []


@pytest.mark.parametrize(("values", "shown"), [(("1", "01", "2"), "01"), ((" 1", "2", "3"), " 1")])
def test_spellings_that_may_be_a_slip_are_noted(values, shown):
    (note,) = encoded(*values, *values, spelled=True).notes
    assert f"'{shown}'" in note


@pytest.mark.parametrize(
    ("values", "fact"),
    [
        (("0.5", "1.0", "1.5"), "problem_type='regression'"),
        (("-1", "0", "1"), "-1"),
        (("-100", "0", "1"), "-100"),
        ((*"1234" * 10, "NA"), "'NA' in row 41"),
        ((*("1.0", "2.0") * 10, "NA"), "'NA' in row 21"),
    ],
)
def test_what_is_no_class_as_a_number_is_none_as_the_text_of_a_number(values, fact):
    assert unnamed(refusal(*values, *values, spelled=True), fact) == []
    meant = tuple(dict.fromkeys(values))
    assert encoded(*values, *values, spelled=True, names=meant).names == meant


@pytest.mark.parametrize("values", [("0", "1"), ("0.0", "1.0"), ("false", "true"), ("False", "True"), (" 0", "01")])
def test_given_names_belong_to_the_integers_however_they_are_spelled(values):
    classes = encoded(*values, *values, spelled=True, names=("bad", "good"))
    assert (classes.names, classes.codes["training"].tolist()) == (("bad", "good"), [0, 1, 0, 1])


@pytest.mark.parametrize(
    ("values", "given"),
    [
        (("False", "True"), ("true", "false")),
        (("0.0", "1.0"), ("1", "0")),
        (("1.0", "2.0"), ("1", "2")),
        (("true", "FALSE"), ("0", "1")),
        (("Good ", "bad"), ("bad", "good")),
        ((0, 1), ("1", "0")),
        ((1.0, 2.0), ("2", "1")),
        ((0, 1), ("true", "false")),
        ((False, True), ("True", "False")),
    ],
)
def test_a_label_is_the_class_whose_name_means_it_whatever_the_order_of_the_names(values, given):
    def meaning(of):
        text = str(of).strip().lower()
        return {"true": 1.0, "false": 0.0}.get(text) if text in ("true", "false") else number(text)

    def number(text):
        return float(text) if text[0].isdigit() else text

    classes = encoded(*values, *values, held_out=values, spelled=isinstance(values[0], str), names=given)
    assert classes.names == given
    assert [meaning(given[code]) for code in classes.codes["training"]] == [*map(meaning, values)] * 2
    assert [meaning(given[code]) for code in classes.codes["held-out"]] == [*map(meaning, values)]


@pytest.mark.parametrize("values", [(0, 1), ("0", "1")])
@pytest.mark.parametrize("given", [("1", "2"), ("2", "3")])
def test_names_that_are_other_numbers_than_the_labels_are_refused(values, given):
    assert unnamed(refusal(*values, *values, names=given), "0", given[1]) == []


def test_names_of_the_run_put_the_names_that_came_with_the_data_into_their_order():
    classes = encoded(0, 1, 1, data_names=("neg", "pos"), names=("pos", "neg"))
    assert (classes.names, classes.codes["training"].tolist()) == (("pos", "neg"), [1, 0, 0])
    assert encoded(0, 1, 1, data_names=("1", "2")).codes["training"].tolist() == [0, 1, 1]


def test_spaces_around_a_number_make_no_class_of_its_own():
    classes = encoded("1", " 1", "2", "2 ", spelled=True)
    assert (classes.names, classes.codes["training"].tolist()) == (("1", "2"), [0, 0, 1, 1])
    assert len(classes.notes) == 1


def test_texts_of_a_table_with_types_are_classes_also_where_they_look_like_fractions():
    versions = ("3.10", "3.8", "3.9")
    assert encoded(*versions, *versions).names == versions


def test_an_infinite_label_is_named_with_its_row():
    said = refusal(0.0, 1.0, float("inf"), held_out=(float("-inf"), 1.0))
    assert unnamed(said, "'stars'", "inf in row 3", "-inf in row 1") == []
    assert "regression" not in said


def test_a_slip_of_the_pen_among_numbers_is_no_class():
    texts = [str(i % 5 + 1) for i in range(38)] + ["five", "4.5"]
    with pytest.raises(InvalidInput) as refused:
        encode({"training": pa.chunked_array([texts])})
    assert unnamed(refused.value, "38 of 40", 2, "'five' in row 39") == []
    meant = encode({"training": pa.chunked_array([["1", "2", "none"] * 7])})
    assert meant.names == ("1", "2", "none")
