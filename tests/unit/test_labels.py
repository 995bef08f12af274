"""Columns become classes, several labels per row, or numbers, or it is said in which rows they cannot."""

import decimal
from types import SimpleNamespace

import pyarrow as pa
import pytest

from tests.messages import unnamed
from train_func.errors import InvalidInput
from train_func.worker.inputs.findings import Findings
from train_func.worker.tasks import labels, targets


def column(values, type=None):
    return pa.chunked_array([pa.array(values, type=type)])


def encode(encoder, tables, name, **options):
    """The labels that an encoder makes, and notes."""
    findings = Findings()
    made = encoder(tables, name, findings, **options)
    findings.refuse()
    made = {"numbers": made} if isinstance(made, dict) else vars(made)
    return SimpleNamespace(**made, notes=tuple(findings.notes))


def encoded(*values, held_out=None, type=None, encoder=labels.encode, **options):
    parts = {"training": column(values, type)}
    if held_out is not None:
        parts["held-out"] = column(held_out, type)
    return encode(encoder, parts, "stars", **options)


def refusal(*values, **options):
    with pytest.raises(InvalidInput) as caught:
        encoded(*values, **options)
    assert caught.value.cause == "data"
    return str(caught.value)


@pytest.mark.parametrize(
    ("values", "names", "codes"),
    [
        ((1, 5, 3, 1, 10), ("1", "3", "5", "10"), [0, 2, 1, 0, 3]),
        (("pos", "neg", "pos"), ("neg", "pos"), [1, 0, 1]),
        ((True, False, True), ("False", "True"), [1, 0, 1]),
        (("2", "10", "1") * 2, ("1", "2", "10"), [1, 2, 0] * 2),
        (("01", "02", "10") * 2, ("01", "02", "10"), [0, 1, 2] * 2),
        (("None", "NA", "nan") * 2, ("NA", "None", "nan"), [1, 0, 2] * 2),
        ((str(2**64 + 1), str(2**64)) * 2, (str(2**64), str(2**64 + 1)), [1, 0] * 2),
    ],
)
def test_values_become_classes_in_their_own_order_as_their_file_spells_them(values, names, codes):
    classes = encoded(*values)
    assert (classes.names, classes.codes["training"].tolist(), classes.notes) == (names, codes, ())


@pytest.mark.parametrize(
    ("values", "held_out", "options", "names", "codes"),
    [
        ((1, 2, 1), (2, 3), {}, ("1", "2", "3"), [1, 2]),
        (("1", "0"), (1, 0), {}, ("0", "1"), [1, 0]),
        (("1", "2", "1"), ("1.0", "2.0"), {}, ("1", "2"), [0, 1]),
        ((1, 0, 1), ("good",), {"data_names": {"training": ("bad", "good")}}, ("bad", "good"), [1]),
    ],
    ids=["of both", "texts and integers", "texts of floats", "integers and their names"],
)
def test_classes_are_those_of_both_parts_however_each_spells_them(values, held_out, options, names, codes):
    classes = encoded(*values, held_out=held_out, **options)
    assert (classes.names, classes.codes["held-out"].tolist()) == (names, codes)


@pytest.mark.parametrize(
    ("values", "names", "codes"),
    [
        ((0, 1), ("bad", "good"), [0, 1]),
        (("0", "1"), ("bad", "good"), [0, 1]),
        ((" 0", "1 "), ("bad", "good"), [0, 1]),
        (("good", "bad"), ("good", "bad"), [0, 1]),
        (("0.0", "1.0"), ("1", "0"), [1, 0]),
        (("0.5", "1.0", "2.25"), ("2.25", "1.0", "0.5"), [2, 1, 0]),
    ],
)
def test_a_label_is_the_class_of_its_name_and_an_integer_that_of_its_place(values, names, codes):
    classes = encoded(*values, *values, names=names)
    assert (classes.names, classes.codes["training"].tolist()) == (names, codes * 2)


@pytest.mark.parametrize(
    ("data_names", "names", "codes"),
    [
        (("neg", "pos"), (), [0, 1, 1]),
        (("neg", "pos"), ("bad", "good"), [0, 1, 1]),
        (("neg", "pos"), ("pos", "neg"), [1, 0, 0]),
    ],
)
def test_names_of_the_run_go_before_those_that_came_with_the_data_and_order_them(data_names, names, codes):
    classes = encoded(0, 1, 1, data_names={"training": data_names}, names=names)
    assert (classes.names, classes.codes["training"].tolist()) == (names or data_names, codes)


@pytest.mark.parametrize(
    ("of_held_out", "held_out", "names", "codes"),
    [
        (("pos", "neg"), (0, 1), ("neg", "pos"), [1, 0]),
        (("neg", "mixed", "pos"), (0, 1, 2), ("neg", "pos", "mixed"), [0, 2, 1]),
    ],
    ids=["in another order", "with another one between them"],
)
def test_integers_of_parts_with_names_of_their_own_are_the_classes_of_these_names(of_held_out, held_out, names, codes):
    data_names = {"training": ("neg", "pos"), "held-out": of_held_out}
    classes = encoded(0, 1, 1, held_out=held_out, data_names=data_names)
    assert (classes.names, classes.codes["held-out"].tolist()) == (names, codes)
    assert classes.codes["training"].tolist() == [0, 1, 1]
    lists = encoded([0, 1], held_out=[[one] for one in held_out], data_names=data_names, encoder=targets.encode_lists)
    assert (lists.names, lists.codes["held-out"].argmax(axis=1).tolist()) == (names, codes)


def test_a_number_that_has_no_name_in_data_with_names_is_refused_without_a_word_of_the_run():
    data_names = {"training": ("neg", "pos"), "held-out": ("pos", "neg")}
    message = refusal(0, 1, 1, held_out=(-1, -1), data_names=data_names)
    assert unnamed(message, "'-1'", "'neg'", "'pos'", "rows") == []
    assert "labels=" not in message


def test_a_name_without_rows_is_noted():
    (note,) = encoded(1, 0, 1, names=("bad", "good", "mixed")).notes
    assert unnamed(note, "'stars'", "'mixed'") == []


def test_null_labels_are_counted_and_placed():
    said = refusal(1, None, 0, None, held_out=(0, None))
    assert unnamed(said, "2 of 4 labels", "rows 2, 4", "1 of 2 labels") == []
    for values in (("a", " ", "b"), ("a", None, "b"), ("1", None, "0"), (1.0, float("nan"), 0.0)):
        assert "1 of 3 labels" in refusal(*values)


BAD_GOOD = {"names": ("bad", "good")}


@pytest.mark.parametrize(
    ("values", "options", "facts"),
    [
        ((0, 1, 5), BAD_GOOD, ["range 0-5", "0-1", "2 names"]),
        (("bad", "good", "meh"), BAD_GOOD, ["'meh'", "labels=('bad', 'good')"]),
        ((0, 1) * 2, {"names": ("1", "2")}, ["0", "labels=('1', '2')"]),
        ((1, 1, 1), {}, ["1", "one class"]),
        ((None, None, None), BAD_GOOD, ["3 of 3 labels"]),
        (range(7), {}, ["7 different labels", "7 rows", "0, 1, 2, 3, 4 and 2 more"]),
        ([row % 1001 for row in range(20_020)], {}, ["1001 different labels"]),
        (([1], [0]), {}, ["type list<"]),
        ((0.5, 1.0, 2.25) * 2, {}, ["0.5", "regression"]),
        (("1,5", "2,5", "3") * 2, {}, ["'1,5'", "regression"]),
        ((0.0, 1.0, float("inf")) * 2, {}, ["inf", "regression"]),
    ],
)
def test_what_is_no_column_of_classes_is_refused_with_its_values(values, options, facts):
    said = refusal(*values, **options)
    assert [fact for fact in ["'stars'", *facts] if fact not in said] == []


ROWS = [["b", "a"], [], ["b"], ["a", "a"], ["c"]]
CODES = [[1, 1, 0], [0, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1]]


@pytest.mark.parametrize(
    ("values", "type"),
    [
        (ROWS, None),
        (ROWS, pa.large_list(pa.large_string())),
        (["b | a", "", "b", "a|a|", "c"], None),
    ],
    ids=["lists", "large lists", "texts"],
)
def test_lists_and_texts_with_bars_become_a_one_for_each_label_of_the_row(values, type):
    found = encoded(*values, type=type, encoder=targets.encode_lists)
    assert (found.names, found.codes["training"].tolist()) == (("a", "b", "c"), CODES)


@pytest.mark.parametrize(
    ("values", "given", "names"),
    [
        (("db", "db,ui"), ("db", "db,ui"), ("db", "db,ui")),
        (("food, drink|new york", "new york"), (), ("food, drink", "new york")),
    ],
)
def test_spaces_and_commas_are_parts_of_labels_where_there_is_a_bar_or_all_are_named(values, given, names):
    assert encoded(*values, names=given, encoder=targets.encode_lists).names == names


def test_labels_of_lists_are_those_of_both_parts_under_the_names_that_are_given():
    found = encoded(
        [0, 1], [], [1], held_out=([], [2]), names=("rude", "slow", "cold", "late"), encoder=targets.encode_lists
    )
    assert found.codes["training"].tolist() == [[1, 1, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0]]
    assert found.codes["held-out"].tolist() == [[0, 0, 0, 0], [0, 0, 1, 0]]
    (note,) = found.notes
    assert unnamed(note, "'late'") == []


def test_rows_of_a_part_of_a_table_are_counted_from_its_own_first():
    whole = pa.chunked_array([pa.array([["x"], *ROWS]).slice(1), pa.array(ROWS)])
    assert encode(targets.encode_lists, {"training": whole}, "topics").codes["training"].tolist() == CODES * 2


@pytest.mark.parametrize(
    ("values", "names", "facts"),
    [
        ((["a"], None, ["b"], None), (), ["2 of 4", "2, 4", "empty list"]),
        ((["a", None], ["b"], [None, "a"]), (), ["2 of 5", "1, 3"]),
        ((1, 2, 3), (), ["int64", "|", "label=("]),
        (("db", "db,ui"), ("db", "ui"), ["|", "'db,ui'"]),
        (([], [], []), (), ["no row"]),
        (([0], [3]), ("bad", "good"), ["0-3", "0-1"]),
    ],
)
def test_what_is_no_list_of_labels_is_refused_with_its_row(values, names, facts):
    assert unnamed(refusal(*values, names=names, encoder=targets.encode_lists), "'stars'", *facts) == []


def test_columns_of_noughts_and_ones_are_labels_of_their_names():
    table = pa.table({"toxic": [0, 1, 1], "insult": [True, False, True], "threat": [0.0, 0.0, 0.0]})
    found = encode(targets.encode_columns, {"training": table}, ("toxic", "insult", "threat"))
    assert found.names == ("toxic", "insult", "threat")
    assert found.codes["training"].tolist() == [[0, 1, 0], [1, 0, 0], [1, 1, 0]]
    (note,) = found.notes
    assert unnamed(note, "'threat'") == []


def test_other_values_in_such_columns_are_refused_each_with_its_row():
    table = pa.table({"toxic": [0, 2, None], "insult": ["no", "1", ""], "threat": ["0", "True", "1.0"]})
    with pytest.raises(InvalidInput) as caught:
        encode(targets.encode_columns, {"training": table}, ("toxic", "insult", "threat"))
    toxic, insult = caught.value.faults
    assert unnamed(toxic, "'toxic'", "2 values", "such as 2", "2, 3") == []
    assert unnamed(insult, "'insult'", "'no'", "1, 3") == []
    with pytest.raises(InvalidInput, match="no row has a 1"):
        encode(targets.encode_columns, {"training": pa.table({"a": [0, 0], "b": [0, 0]})}, ("a", "b"))


def test_numbers_with_a_decimal_comma_are_told_as_that_with_how_to_read_them_whatever_is_asked_for():
    values = ("1,5", "2,25", "1,5", "3,0")
    as_classes, as_numbers = refusal(*values), refusal(*values, encoder=targets.encode_numbers)
    for said in (as_classes, as_numbers):
        assert unnamed(said, "'1,5'", "decimal comma", "1.5", "pandas.read_csv(..., decimal=',')") == []
    assert "problem_type='regression'" in as_classes
    assert "problem_type" not in as_numbers


@pytest.mark.parametrize(
    ("values", "numbers"),
    [
        ((1, 2, 5), [1, 2, 5]),
        ((decimal.Decimal("1.0"), decimal.Decimal("2.5")), [1, 2.5]),
        (("1.50", "+2", " -3 ", "1E1", ".5", "007"), [1.5, 2, -3, 10, 0.5, 7]),
    ],
)
def test_numbers_of_any_type_and_spelling_are_read_as_they_are(values, numbers):
    found = encoded(*values, held_out=values[:1], encoder=targets.encode_numbers)
    assert found.numbers["training"].tolist() == numbers
    assert found.numbers["held-out"].tolist() == numbers[:1]
    assert (found.numbers["training"].dtype, found.notes) == ("float32", ())


def test_numbers_far_from_the_scale_of_a_new_head_are_noted():
    (note,) = encoded(1, -250_000, encoder=targets.encode_numbers).notes
    assert unnamed(note, "'stars'", "-250000", "frame['stars'] / 250000") == []


@pytest.mark.parametrize(
    ("values", "facts"),
    [
        ((1.5, None, float("nan"), float("inf")), ["3 values", "None", "rows 2, 3, 4"]),
        ((1.5, 1e300), ["1 value", "1e+300", "row 2"]),
        (("1.5", "3,5", ""), ["2 values", "'3,5'", "rows 2, 3"]),
        ((True, False), ["bool"]),
        ((3, 3, 3), ["3", "nothing to learn"]),
    ],
)
def test_what_is_no_number_is_refused_with_row_and_value(values, facts):
    said = refusal(*values, encoder=targets.encode_numbers)
    assert [fact for fact in ["'stars'", *facts] if fact not in said] == []


def test_faults_of_both_parts_come_together():
    with pytest.raises(InvalidInput) as caught:
        encoded(1, None, held_out=(None, 2), encoder=targets.encode_numbers)
    training, held_out = caught.value.faults
    assert unnamed(training, "training", "row 2") == []
    assert unnamed(held_out, "held-out", "row 1") == []
