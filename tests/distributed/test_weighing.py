"""A step is the weighted mean over its global batch, whatever the loss, however it is cut, on however many ranks."""

import numpy as np
import pytest

from tests.distributed.conftest import HANG
from tests.distributed.parity import flat
from tests.distributed.weighing import (
    CASES,
    OWN_LOOPS,
    Unused,
    reference_of,
    weighted_means,
)
from tests.distributed.worlds import ALONE_AND_UGLY

pytestmark = pytest.mark.timeout(HANG)
TO_1E_6 = {"rtol": 1e-5, "atol": 1e-6}
# A mean that is not over items depends on the batch it is taken of; so does what a collator draws.
SAME_IN_ANY_BATCH = [name for name, case in CASES.items() if case.whole is not weighted_means and not case.drawn]


@pytest.fixture(scope="module")
def told(in_worlds):
    return {place: found["weighing"] for place, found in in_worlds.items() if "weighing" in found}


@pytest.fixture(scope="module")
def found(told):
    return {place: of_rank["cases"] for place, of_rank in told.items()}


@pytest.fixture(scope="module")
def reference():
    return {name: reference_of(case) for name, case in CASES.items()}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size", ALONE_AND_UGLY)
def test_gradients_and_losses_are_those_of_the_whole_batch_at_once(found, reference, name, size):
    for rank in range(size):
        of_rank, expected = found[size, rank][name], reference[name]
        differing = np.linalg.norm(of_rank["gradients"] - expected["gradients"])
        assert differing <= 1e-6 * np.linalg.norm(expected["gradients"])
        np.testing.assert_allclose(of_rank["losses"], expected["losses"], rtol=1e-6)
        np.testing.assert_allclose(found[size, rank][name]["weights"], reference[name]["weights"], **TO_1E_6)


@pytest.mark.parametrize("name", OWN_LOOPS)
@pytest.mark.parametrize("size", ALONE_AND_UGLY)
def test_gradients_of_a_loop_of_ones_own_are_those_of_the_whole_batch_at_once(told, name, size):
    expected = reference_of(OWN_LOOPS[name])["gradients"]
    for rank in range(size):
        differing = np.linalg.norm(told[size, rank]["own loops"][name] - expected)
        assert differing <= 1e-6 * np.linalg.norm(expected)


@pytest.mark.parametrize("name", SAME_IN_ANY_BATCH)
@pytest.mark.parametrize("size", ALONE_AND_UGLY)
def test_the_loss_of_an_evaluation_is_that_of_all_rows_at_once(found, reference, name, size):
    assert found[size, 0][name]["eval_loss"] == pytest.approx(reference[name]["eval_loss"], rel=1e-5)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size", ALONE_AND_UGLY)
def test_rows_that_count_nothing_are_used_all_the_same(found, name, size):
    assert found[size, 0][name]["once"] == [40]


def test_parameters_that_no_loss_depends_on_stay_as_they_were_at_any_world_size(told):
    untrained = flat(Unused().spare.parameters())
    for of_rank in told.values():
        np.testing.assert_array_equal(of_rank["spare layer"]["spare"], untrained)
        assert of_rank["spare layer"]["sha256"] == told[1, 0]["spare layer"]["sha256"]


@pytest.mark.parametrize("in_own_loop", [False, True])
def test_layers_that_are_unfrozen_after_ddp_was_made_are_trained_by_all_ranks_alike(told, in_own_loop):
    assert len({of_rank["unfreezing"][in_own_loop] for of_rank in told.values()}) == 1


@pytest.mark.parametrize("name", CASES)
def test_gradients_and_losses_are_the_same_bits_at_any_world_size(found, name):
    for of_rank in found.values():
        assert of_rank[name]["losses"] == found[1, 0][name]["losses"]
        np.testing.assert_array_equal(of_rank[name]["gradients"], found[1, 0][name]["gradients"])
