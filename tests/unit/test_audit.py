"""How data was split is read from row ids alone."""

import re

import numpy as np
import pytest

from tests.messages import unnamed
from train_func.worker.training.audit import ONCE, WHOLE, count, pattern_of


def block(ids, rank, size):
    return np.array_split(ids, size)[rank]


def stride(ids, rank, size):
    return ids[rank::size]


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("num_rows", [101, 40, 24])
@pytest.mark.parametrize(
    "splits, named",
    [
        ((), re.escape(WHOLE)),
        ((block,), re.escape(ONCE)),
        ((stride,), "every n-th for each rank"),
        ((block, block), "into blocks and again into blocks"),
        ((block, stride), "into blocks .* and then every n-th"),
        ((stride, stride), "every n-th and again every n-th"),
    ],
)
def test_a_pattern_is_known_by_its_row_ids(splits, named, num_rows, size):
    ids = np.random.default_rng(0).permutation(num_rows) * 2
    parts = []
    for rank in range(size):
        part = ids
        for split in splits:
            part = split(part, rank, size)
        parts.append(np.random.default_rng(rank).permutation(part))  # in whatever order
    assert re.search(named, pattern_of(ids, parts))


def test_the_same_part_everywhere_is_no_split():
    ids = np.arange(10)
    assert unnamed(pattern_of(ids, [ids[:5], ids[:5]]), "same", "5 of 10") == []


def test_what_fits_no_pattern_was_done_by_hand():
    ids = np.arange(10)
    found = pattern_of(ids, [ids[:7], ids[7:]])
    assert unnamed(found, "by hand", "7 on rank 0", "3 on rank 1", 10) == []


def test_coverage_counts_every_kind_of_use():
    coverage = count(np.asarray([10, 11, 12, 13]), [np.asarray([10, 11]), np.asarray([11, 99])])
    assert coverage.counts("used_once") == {"rows": 4, "used_once": 1, "missing": 2, "repeated": 1}
    assert not coverage.exact
    assert re.findall(r"\((row ids [^)]+)\)", str(coverage)) == ["row ids 12, 13", "row ids 11", "row ids 99"]


def test_coverage_of_every_row_once_is_exact():
    coverage = count(np.arange(5), [np.asarray([4, 0]), np.asarray([2, 1, 3])])
    assert coverage.exact
    assert str(coverage) == "of 5 rows 5 once"


def test_ids_may_be_texts():
    assert count(np.asarray(["a", "b"]), [np.asarray(["b"]), np.asarray(["a"])]).exact


def test_only_the_first_ids_are_shown():
    assert str(count(np.arange(7), [])) == "of 7 rows 0 once, 7 never (row ids 0, 1, 2, 3, 4 and 2 more)"
