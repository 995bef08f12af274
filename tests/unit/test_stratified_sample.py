"""Rows are drawn in proportion to their classes, and the same ones forever."""

import numpy as np
import pytest

from train_func.worker.tasks.train_eval_split import allocate, stratified_sample


@pytest.mark.parametrize(
    ("counts", "num", "leave", "share"),
    [
        ([400, 400], 200, 1, [100, 100]),
        ([7, 3], 5, 0, [4, 1]),  # 3.5 and 1.5: the lower class gets the odd row
        ([100, 1, 1], 3, 0, [1, 1, 1]),  # one each, where there are enough
        ([100, 1, 1], 3, 1, [3, 0, 0]),  # single rows stay
        ([100, 1, 1], 2, 0, [2, 0, 0]),
        ([3, 3], 100, 1, [2, 2]),
        ([0, 5, 5], 4, 0, [0, 2, 2]),
    ],
)
def test_rows_are_allocated_in_proportion(counts, num, leave, share):
    assert allocate(np.array(counts), num, leave=leave).tolist() == share


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("num_rows", [7, 40, 101])
def test_any_allocation_adds_up_and_stays_within_what_is_there(seed, num_rows):
    codes = np.random.RandomState(seed).randint(0, 5, num_rows)
    counts = np.bincount(codes)
    for num in range(1, num_rows + 1):
        share = allocate(counts, num)
        assert share.sum() == num
        assert (share <= counts).all()
        assert num < (counts > 0).sum() or (share[counts > 0] >= 1).all()
        assert (np.abs(share - counts * num / num_rows) < 1).all() or (share == 1).any()


def test_a_draw_takes_its_share_of_every_class_in_ascending_order():
    codes = np.arange(101) % 3
    rows = stratified_sample(codes, 20, seed=1, stream=1)
    assert (np.diff(rows) > 0).all()
    assert np.bincount(codes[rows]).tolist() == allocate(np.bincount(codes), 20).tolist()


def test_seed_and_stream_decide_and_nothing_else_does():
    codes = np.arange(101) % 3
    np.random.seed(0)
    first = stratified_sample(codes, 20, seed=1, stream=1).tolist()
    np.random.seed(1)
    assert stratified_sample(codes, 20, seed=1, stream=1).tolist() == first
    assert stratified_sample(codes, 20, seed=2, stream=1).tolist() != first
    assert stratified_sample(codes, 20, seed=1, stream=2).tolist() != first


def test_the_rows_of_a_seed_never_change():
    expected = [2, 6, 7, 10, 11, 19, 25, 33]
    assert stratified_sample(np.arange(40) % 5, 8, seed=42, stream=2, leave=1).tolist() == expected
    assert stratified_sample(np.arange(40) % 5, 8, seed=2**32 - 1, stream=2, leave=1).tolist() != expected
