"""A step is the weighted mean over its global batch, whatever the loss, however it is cut, on however many ranks."""

import numpy as np
import pytest

from tests.distributed.conftest import HANG
from tests.distributed.weighing import (
    CASES,
    OWN_LOOPS,
    reference_of,
    weighted_means,
)
from tests.distributed.worlds import ALONE_AND_UGLY
from tests.messages import unnamed

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


@pytest.mark.parametrize("size", ALONE_AND_UGLY)
def test_parameters_without_a_gradient_are_named_before_the_ranks_weights_differ(told, size):
    for rank in range(size):
        said = told[size, rank]["spare layer"]
        assert (said["cause"], said["steps"]) == ("code", 0)
        assert unnamed(said["message"], "2 parameters", "Unused", "spare.weight, spare.bias") == []
        assert "ddp_find_unused_parameters=True" in said["message"]


def test_parameters_without_a_gradient_may_be_looked_for(told):
    assert all(of_rank["spare layer, looked for"] == {"steps": 1} for of_rank in told.values())


@pytest.mark.parametrize("in_own_loop", [False, True])
@pytest.mark.parametrize("size", ALONE_AND_UGLY)
def test_layers_that_are_unfrozen_after_ddp_was_made_are_named_before_the_ranks_weights_differ(told, size, in_own_loop):
    for rank in range(size):
        said = told[size, rank]["unfreezing"][in_own_loop]
        if size == 1:
            assert said == {"steps": 3}
        else:
            assert (said["cause"], said["steps"]) == ("code", 1)
            assert unnamed(said["message"], "step 2", "bert.", "learning rate is 0", "two runs") == []
