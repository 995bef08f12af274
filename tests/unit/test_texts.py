"""Texts that are missing, empty, repeated or contradictory are counted and placed."""

import numpy as np
import pyarrow as pa
import pytest

from tests import halves
from tests.messages import unnamed
from tests.tiny_model import write_tiny_tokenizer
from train_func.worker.tasks.columns import MEASURED, judge_equal, judge_lengths, judge_overlap, judge_texts


def judged(*texts, type=None, **more):
    return halves.judged(judge_texts, pa.table({"review": pa.array(texts, type=type), **more}), "review", "training")


def column(*texts):
    return pa.chunked_array([pa.array(texts, pa.large_string())])


def test_plain_texts_have_no_fault():
    assert judged("a", "b") == ([], [])
    assert judged("a", "b", type=pa.dictionary(pa.int8(), pa.string())) == ([], [])


def test_null_texts_are_counted_and_placed():
    (fault,), notes = judged("a", None, "b", None)
    assert unnamed(fault, "column 'review'", "2 of 4 texts", "rows 2, 4") == []
    assert notes == []


def test_a_column_of_nulls_or_of_numbers_is_no_text():
    assert "null, not texts" in judged(None, None)[0][0]
    (fault,), _ = judged(1, 2, other=["a", "b"])
    assert unnamed(fault, "column 'review'", "int64", "other") == []


def test_a_few_empty_texts_are_noted_with_their_share():
    faults, (note,) = judged(*["good"] * 19, " \n")
    assert faults == []
    assert unnamed(note, "5.0%", "row 20") == []


def test_held_out_texts_that_are_trained_on_are_noted_up_to_a_tenth():
    training = column(*(f"text {i}" for i in range(40)))
    held_out = column("text 7", *(f"other {i}" for i in range(9)))
    faults, (note,) = halves.judged(judge_overlap, training, held_out, np.arange(10) + 50)
    assert faults == []
    assert unnamed(note, "1 of 10", "10.0%", "row 51") == []
    (fault,), notes = halves.judged(judge_overlap, training, column("text 1", "text 2", "new"), np.arange(3))
    assert unnamed(fault, "2 of 3", "66.7%", "rows 1, 2", "10%") == []
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
    ],
)
def test_the_share_of_texts_that_are_cut_is_noted_with_their_lengths(tmp_path, lengths, max_length, facts):
    write_tiny_tokenizer(tmp_path)  # adds two tokens to each text
    texts = pa.table({"text": pa.array([" ".join(["pizza"] * length) for length in lengths])})
    _, (note,) = halves.judged(judge_lengths, texts, tmp_path, max_length)
    assert unnamed(note, *facts) == []


def test_no_more_of_a_long_text_is_counted_than_tells_that_it_is_cut(tmp_path):
    write_tiny_tokenizer(tmp_path)
    texts = pa.table({"text": pa.array(["the " * MEASURED, "the"])})
    _, (note,) = halves.judged(judge_lengths, texts, tmp_path, 16)
    assert unnamed(note, "cuts 50%", f"the longest {MEASURED // 4 + 2}") == []


@pytest.mark.parametrize("text", ["NA", "null", "nan", "None"])
def test_words_that_look_like_nulls_are_texts(tmp_path, text):
    from train_func.worker.inputs.delimited import read_csv

    path = tmp_path / "a.csv"
    path.write_text(f"review,label\ngood,1\n{text},0\n")
    table = read_csv(path)
    assert table["review"].to_pylist() == ["good", text]
    assert halves.judged(judge_texts, table, "review", "training") == ([], [])
