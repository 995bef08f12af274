"""Messages say which rows are meant, and how they are counted."""

import numpy as np
import pyarrow as pa
import pytest

from tests.halves import judged
from tests.messages import unnamed
from train_func.text import COUNTED, in_rows
from train_func.worker.tasks.columns import judge_overlap, judge_texts
from train_func.worker.tasks.labels import encode


@pytest.mark.parametrize(
    ("rows", "told"), [([6], "in row 7 "), ([6, 40], "in rows 7, 41 "), (range(7), "first in rows 1, 2, 3, 4, 5 ")]
)
def test_rows_are_counted_from_one_without_the_header_and_more_than_a_few_are_cut(rows, told):
    assert in_rows(np.array(rows)) == f"{told}{COUNTED}"


@pytest.mark.parametrize(("missing", "told"), [([6], "1 of 40 labels of the training rows is"), ([6, 8], "rows are")])
def test_one_row_is_told_of_in_the_singular(missing, told):
    labels = [None if row in missing else "ab"[row % 2] for row in range(40)]
    (fault,), _ = judged(encode, {"training": pa.chunked_array([labels])}, "stars")
    assert unnamed(fault, "'stars'", told, in_rows(missing)) == []


def test_each_place_that_names_rows_says_how_they_are_counted():
    texts = [None if row == 3 else "" if row == 5 else f"text {row}" for row in range(101)]
    faults, notes = judged(judge_texts, pa.table({"text": texts}), "text", "training")
    same = pa.chunked_array([["a", "b"]])
    shared, _ = judged(judge_overlap, same, pa.chunked_array([["b", "c"]]), np.array([4, 6]))
    for said, row in ((faults[0], 3), (notes[0], 5), (shared[0], 4)):
        assert in_rows([row]) in said
