"""Texts that are missing, empty, repeated, contradictory or too long are counted and placed as a user counts rows."""

import numpy as np
import pyarrow as pa
import pytest

from tests import halves
from tests.messages import unnamed
from tests.tiny_model import write_tiny_tokenizer
from train_func.text import COUNTED, in_rows
from train_func.worker.tasks.columns import (
    MEASURED,
    judge_columns,
    judge_equal,
    judge_lengths,
    judge_overlap,
    judge_texts,
)


def judged(*texts, type=None, **more):
    return halves.judged(judge_texts, pa.table({"review": pa.array(texts, type=type), **more}), "review", "training")


def column(*texts):
    return pa.chunked_array([pa.array(texts, pa.large_string())])


@pytest.mark.parametrize(
    ("rows", "text"), [([6], "in row 7 "), ([6, 40], "in rows 7, 41 "), (range(7), "first in rows 1, 2, 3, 4, 5 ")]
)
def test_rows_are_counted_from_one_without_the_header_and_more_than_a_few_are_cut(rows, text):
    assert in_rows(np.array(rows)) == f"{text}{COUNTED}"


@pytest.mark.parametrize(
    ("given", "column", "is_near"),
    [
        ("Gefuehl", "Gefühl", True),
        ("gefühl", "Gefühl", True),
        ("Text der Anfrage", "Text der Anfrage ", True),
        ("stars", "Gefühl", False),
    ],
)
def test_a_column_that_is_not_there_is_told_with_the_nearest_one_in_quotes(given, column, is_near):
    table = pa.table({column: ["a"], "Nr": ["1"]})
    (fault,), _ = halves.judged(judge_columns, table, "dataset='a.csv'", [("label", given)])
    assert unnamed(fault, f"label={given!r}", f"{column!r}, 'Nr'") == []
    assert (f"mean {column!r}?" in fault) is is_near


def test_plain_texts_have_no_fault():
    assert judged("a", "b") == ([], [])
    assert judged("a", "b", type=pa.dictionary(pa.int8(), pa.string())) == ([], [])


@pytest.mark.parametrize(
    ("texts", "facts"),
    [
        (("a", None, "b", None), ["2 of 4 texts", "are null", in_rows([1, 3])]),
        (("a", None, "b"), ["1 of 3 texts", "is null", in_rows([1])]),
        ((None, None), ["null, not texts"]),
        ((1, 2), ["int64", "other"]),
    ],
)
def test_what_is_no_text_is_counted_and_placed(texts, facts):
    (fault,), notes = judged(*texts, other=["a"] * len(texts))
    assert unnamed(fault, "column 'review'", *facts) == []
    assert notes == []


def test_a_few_empty_texts_are_noted_with_their_share():
    faults, (note,) = judged(*["good"] * 19, " \n")
    assert faults == []
    assert unnamed(note, "5.0%", in_rows([19])) == []


def test_held_out_texts_that_are_trained_on_are_noted_up_to_a_tenth():
    training = column(*(f"text {i}" for i in range(40)))
    held_out = column("text 7", *(f"other {i}" for i in range(9)))
    faults, (note,) = halves.judged(judge_overlap, training, held_out, np.arange(10) + 50)
    assert faults == []
    assert unnamed(note, "1 of 10", "10.0%", in_rows([50])) == []
    (fault,), notes = halves.judged(judge_overlap, training, column("text 1", "text 2", "new"), np.arange(3))
    assert unnamed(fault, "2 of 3", "66.7%", in_rows([0, 1]), "10%") == []
    assert notes == []
    assert halves.judged(judge_overlap, training, column("new"), np.arange(1)) == ([], [])


def test_equal_texts_with_different_labels_are_noted():
    texts = column("fine", "so so", "so so", "so so", "bad", "bad")
    _, (note,) = halves.judged(judge_equal, texts, np.array([1, 1, 0, 1, 0, 0]), np.arange(6) + 10)
    assert unnamed(note, "1 training", "row 12") == []
    assert halves.judged(judge_equal, texts, np.zeros(6, dtype=np.int64), np.arange(6)) == ([], [])


@pytest.mark.parametrize(
    ("lengths", "max_length", "facts"),
    [
        ([11] * 40, 3, ["cuts 100%", "the longest 13"]),
        ([3] * 8 + [50], 10, ["cuts 11%", "90 % have at most 52"]),
        ([3] * 17 + [30, 30, 40], 10, ["cuts 15%", "90 % have at most 32", "the longest 42"]),
        ([MEASURED, 1], 16, ["cuts 50%", f"the longest {MEASURED // 4 + 2}"]),  # no more of a text is tokenised
    ],
)
def test_the_share_of_texts_that_are_cut_is_noted_with_their_lengths(tmp_path, lengths, max_length, facts):
    write_tiny_tokenizer(tmp_path)  # adds two tokens to each text
    texts = pa.table({"text": pa.array([" ".join(["the"] * length) for length in lengths])})
    _, (note,) = halves.judged(judge_lengths, texts, tmp_path, max_length)
    assert unnamed(note, *facts) == []
