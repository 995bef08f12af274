"""Columns become any number of labels per row, or it is said in which row they cannot."""

from types import SimpleNamespace

import datasets
import pyarrow as pa
import pytest

from tests.messages import unnamed
from train_func.errors import InvalidInput
from train_func.worker.inputs.findings import Findings
from train_func.worker.inputs.reader import class_names
from train_func.worker.tasks.targets import encode_columns, encode_lists


def column(*values, type=None):
    return pa.chunked_array([pa.array(values, type=type)])


def encode(encoder, *values, **options):
    """The labels that an encoder makes, and notes."""
    findings = Findings()
    labels = encoder(*values, findings, **options)
    findings.refuse()
    return SimpleNamespace(**vars(labels), notes=tuple(findings.notes))


def encoded(*values, held_out=None, type=None, **options):
    parts = {"training": column(*values, type=type)}
    if held_out is not None:
        parts["held-out"] = column(*held_out, type=type)
    return encode(encode_lists, parts, "topics", **options)


def refusal(*values, **options):
    with pytest.raises(InvalidInput) as caught:
        encoded(*values, **options)
    assert caught.value.cause == "data"
    return str(caught.value)


ROWS = [["b", "a"], [], ["b"], ["a", "a"], ["c"]]
CODES = [[1, 1, 0], [0, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1]]


@pytest.mark.parametrize("type", [pa.list_(pa.string()), pa.large_list(pa.large_string()), None])
def test_lists_become_a_one_for_each_label_of_the_row(type):
    found = encoded(*ROWS, type=type)
    assert found.names == ("a", "b", "c")
    assert found.codes["training"].tolist() == CODES


def test_texts_are_cut_at_bars_and_an_empty_one_is_no_label():
    assert encoded("b | a", "", "b", "a|a|", "c").codes["training"].tolist() == CODES


def test_names_that_are_given_show_which_texts_are_several_labels():
    assert unnamed(refusal("db", "db,ui", names=("db", "ui")), "'topics'", "|", "'db,ui'") == []
    assert encoded("db", "db,ui", names=("db", "db,ui")).names == ("db", "db,ui")


def test_spaces_and_where_there_is_a_bar_commas_are_parts_of_labels():
    assert encoded("food, drink|new york", "new york").names == ("food, drink", "new york")


def test_labels_are_those_of_all_parts_together():
    found = encoded(["a"], ["b"], ["b", "a"], held_out=(["c"], []))
    assert found.names == ("a", "b", "c")
    assert found.codes["held-out"].tolist() == [[0, 0, 1], [0, 0, 0]]


def test_integers_take_the_names_that_are_given_or_came_with_the_data():
    found = encoded([0, 1], [], [1], names=("rude", "slow", "cold"))
    assert found.names == ("rude", "slow", "cold")
    assert found.codes["training"].tolist() == [[1, 1, 0], [0, 0, 0], [0, 1, 0]]
    (note,) = found.notes
    assert unnamed(note, "'cold'") == []


def test_names_of_classes_within_lists_are_kept_by_datasets():
    features = datasets.Features(topics=datasets.List(datasets.ClassLabel(names=["rude", "slow"])))
    rows = datasets.Dataset.from_dict({"topics": [[0], [1, 0]]}, features=features)
    table = rows.data.table.replace_schema_metadata(features.arrow_schema.metadata)
    assert class_names(table, "topics") == ("rude", "slow")


def test_rows_of_a_part_of_a_table_are_counted_from_its_own_first():
    whole = pa.chunked_array([pa.array([["x"], *ROWS]).slice(1), pa.array(ROWS)])
    assert encode(encode_lists, {"training": whole}, "topics").codes["training"].tolist() == CODES * 2


@pytest.mark.parametrize(
    ("values", "facts"),
    [
        ((["a"], None, ["b"], None), ["2 of 4", "2, 4", "empty list"]),
        (("a|b", None), ["1 of 2", "2"]),
        ((["a", None], ["b"], [None, "a"]), ["2 of 5", "1, 3"]),
        ((1, 2, 3), ["int64", "|", "label=("]),
        (([], [], []), ["no row"]),
        ((["a"], ["a"]), ["'a'"]),
        (([0], [3]), ["0-3", "0-1"]),
    ],
)
def test_what_is_no_label_is_refused_with_its_row(values, facts):
    options = {"names": ("bad", "good")} if facts[0] == "0-3" else {}
    assert unnamed(refusal(*values, **options), "'topics'", *facts) == []


def test_columns_of_noughts_and_ones_are_labels_of_their_names():
    table = pa.table({"toxic": [0, 1, 1], "insult": [True, False, True], "threat": [0.0, 0.0, 0.0]})
    found = encode(encode_columns, {"training": table}, ("toxic", "insult", "threat"))
    assert found.names == ("toxic", "insult", "threat")
    assert found.codes["training"].tolist() == [[0, 1, 0], [1, 0, 0], [1, 1, 0]]
    (note,) = found.notes
    assert unnamed(note, "'threat'") == []


def test_other_values_in_such_columns_are_refused_each_with_its_row():
    table = pa.table({"toxic": [0, 2, None], "insult": ["no", "1", ""], "threat": ["0", "True", "1.0"]})
    with pytest.raises(InvalidInput) as caught:
        encode(encode_columns, {"training": table}, ("toxic", "insult", "threat"))
    toxic, insult = caught.value.faults
    assert unnamed(toxic, "'toxic'", "2 values", "such as 2", "2, 3") == []
    assert unnamed(insult, "'insult'", "'no'", "1, 3") == []
    empty = pa.table({"toxic": [0, 0], "insult": [0, 0]})
    with pytest.raises(InvalidInput):
        encode(encode_columns, {"training": empty}, ("toxic", "insult"))
