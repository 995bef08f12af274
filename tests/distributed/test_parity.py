"""A step is the same at any number of ranks, bit for bit: its rows, gradient and loss, the weights, the metrics."""

import numpy as np
import pytest

from tests.distributed.conftest import HANG
from tests.distributed.parity import CASES, NUM_EPOCHS, cases_of, reference_of
from tests.distributed.worlds import WORLD_SIZES

pytestmark = pytest.mark.timeout(HANG)
WORLDS = [(size, name) for size in WORLD_SIZES for name in cases_of(size)]
NOISE = {"rtol": 1e-4, "atol": 2e-7}  # fp32 sums in another order; gradients here are about 1e-2


@pytest.fixture(scope="module")
def worlds(in_worlds):
    return {size: in_worlds[size, 0]["parity"] for size in WORLD_SIZES}


@pytest.fixture(scope="module")
def reference():
    return {name: reference_of(name) for name in CASES}


@pytest.mark.parametrize(("size", "name"), WORLDS)
def test_a_global_batch_is_the_same_rows_at_any_world_size(worlds, reference, name, size):
    num_rows, batch_size, *_ = CASES[name]
    assert worlds[size][name]["batches"] == reference[name]["batches"]
    sizes = [len(rows) for rows in reference[name]["batches"].values()]
    whole, left = divmod(num_rows, batch_size)
    assert sizes == ([batch_size] * whole + [left] * bool(left)) * NUM_EPOCHS
    assert worlds[size][name]["steps"] == len(sizes)


@pytest.mark.parametrize(("size", "name"), [(size, name) for size, name in WORLDS if CASES[name][-1] == 0])
def test_every_gradient_is_that_of_one_process_with_the_whole_batch(worlds, reference, name, size):
    np.testing.assert_allclose(worlds[size][name]["gradients"], reference[name]["gradients"], **NOISE)
    np.testing.assert_allclose(worlds[size][name]["weights"], reference[name]["weights"], **NOISE)


@pytest.mark.parametrize(("size", "name"), [(size, name) for size, name in WORLDS if size > 1])
def test_gradients_losses_and_the_sha256_of_the_weights_are_one_at_any_world_size(in_worlds, worlds, name, size):
    for rank in range(size):
        found = in_worlds[size, rank]["parity"][name]
        for what in ("sha256", "losses"):
            assert found[what] == worlds[1][name][what]
        np.testing.assert_array_equal(found["gradients"], worlds[1][name]["gradients"])


def test_dropout_is_on_where_it_was_asked_for(worlds):
    difference = worlds[1]["dropout"]["gradients"] - worlds[1]["101-rows"]["gradients"]
    assert np.abs(difference).max() > 1e-3


@pytest.mark.parametrize(("size", "name"), WORLDS)
def test_every_row_is_trained_once_per_epoch_and_measured_once(worlds, name, size):
    num_rows, *_ = CASES[name]
    assert worlds[size][name]["once"] == [num_rows] * NUM_EPOCHS
    assert worlds[size][name]["in_metric"] == worlds[size][name]["metrics"]["eval_rows"] == num_rows // 2


@pytest.mark.parametrize("name", CASES)
def test_the_metric_is_the_same_on_all_ranks_and_at_any_world_size(in_worlds, worlds, name):
    expected = worlds[1][name]["metrics"]
    for size in [size for size in WORLD_SIZES if name in cases_of(size)]:
        for rank in range(size):
            found = in_worlds[size, rank]["parity"][name]["metrics"]
            assert found["eval_accuracy"] == expected["eval_accuracy"]
            assert found["eval_loss"] == expected["eval_loss"]
            assert found == worlds[size][name]["metrics"]


@pytest.mark.parametrize("name", [name for name in CASES if name != "random-collator"])
def test_predictions_are_those_of_every_row_alone_in_order_on_all_ranks(in_worlds, name):
    expected = in_worlds[1, 0]["parity"][name]["one_by_one"]
    for size in [size for size in WORLD_SIZES if name in cases_of(size)]:
        for rank in range(size):
            found = in_worlds[size, rank]["parity"][name]["predictions"]
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)  # padding changes the order of sums
            np.testing.assert_array_equal(found, in_worlds[1, 0]["parity"][name]["predictions"])
