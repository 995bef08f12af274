"""A loop of one's own trains to the same bits on any number of ranks, however it brings its model, or is refused."""

import numpy as np
import pytest

from tests.distributed.conftest import HANG
from tests.distributed.loops import SIZES, UNSUMMED
from tests.distributed.worlds import WORLD_SIZES
from tests.messages import unnamed

pytestmark = pytest.mark.timeout(HANG)
REFUSED = {
    "steps_too_early": ["SGD.step()", "single micro-batch", "behind that"],
    "leaves_a_step": ["step 1 ", "left before its end", "break"],
    "steps_with_another_model": ["SGD", "parameters", "before the first step"],
    "uses_a_sparse_layer": ["SGD.param_groups[0][0]", "sparse=True"],
    "other_weights": ["begin with different models", "8 parameters"],
}


@pytest.fixture(scope="module")
def loops(in_worlds):
    return {place: found["loops"] for place, found in in_worlds.items()}


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("way", ["by_ddp", "by_optimizer"])
def test_the_weights_are_the_same_bits_on_any_number_of_ranks(loops, way, name):
    for found in loops.values():
        np.testing.assert_array_equal(found[way][name]["weights"], loops[1, 0]["by_ddp"][name]["weights"])
        assert found[way][name]["notes"] == []


@pytest.mark.parametrize("name", SIZES)
def test_a_loop_that_averages_the_sums_once_more_has_what_it_had(loops, name):
    for found in loops.values():
        expected = loops[1, 0]["by_ddp"][name]["weights"]
        np.testing.assert_allclose(found["by_average"][name]["weights"], expected, rtol=1e-3, atol=1e-5)


def test_hooks_that_may_exchange_gradients_too_are_told_of_before_the_first_step(loops):
    for size in WORLD_SIZES:
        notes = loops[size, 0]["notes of hooks"]
        assert len(notes) == (size > 1)
        assert all(unnamed(note, "4 parameters", "hooks on their gradients") == [] for note in notes)


@pytest.mark.parametrize("way", UNSUMMED)
def test_gradients_that_are_not_summed_over_the_ranks_are_told_once(loops, way):
    for (size, _), found in loops.items():
        assert len(found["unsummed"][way]) == (size > 1 and way != "sums_by_hand")


@pytest.mark.parametrize("way", REFUSED)
def test_what_would_train_each_rank_by_itself_is_refused_on_all_ranks(loops, way):
    for (size, _), found in loops.items():
        said = found["wrong"][way]
        if size == 1 and way in ("steps_with_another_model", "uses_a_sparse_layer"):
            assert said is None
        elif size > 1 or way != "other_weights":
            assert said[0] == "code"
            assert unnamed(said[1], *REFUSED[way]) == []
