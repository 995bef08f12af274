"""Images with BatchNorm and augmentation: losses, evaluation and buffers are the same at any number of ranks."""

import math

import numpy as np
import pytest
import torch

from tests.distributed.conftest import HANG
from tests.distributed.images import CASES, EPOCHS, LOOP_BATCH, LOOP_ROWS, ONE_BY_ONE

pytestmark = pytest.mark.timeout(HANG)
NOISE = {"rtol": 0, "atol": 1e-5}
IN_TURN = [name for name in CASES if name not in ONE_BY_ONE]


def each(in_worlds, name):
    """What every rank of every world found of a case."""
    return {of: found["images"][name] for of, found in in_worlds.items() if "images" in found}


@pytest.mark.parametrize("name", [*CASES, "loop"])
def test_the_loss_of_every_step_is_the_same_at_any_number_of_ranks(in_worlds, name):
    found = each(in_worlds, name)
    expected = found[1, 0]["losses"]
    num_rows, batch_size = (LOOP_ROWS, LOOP_BATCH) if name == "loop" else CASES[name][:2]
    assert len(expected) == EPOCHS * math.ceil(num_rows / batch_size)
    for of in found.values():
        if name == "loop":  # which adds up its losses itself
            np.testing.assert_allclose(of["losses"], expected, **NOISE)
        else:
            assert of["losses"] == expected


@pytest.mark.parametrize("name", CASES)
def test_the_evaluation_is_the_same_at_any_number_of_ranks(in_worlds, name):
    found = each(in_worlds, name)
    expected = found[1, 0]["metrics"]
    for of in found.values():
        assert of["metrics"]["eval_loss"] == expected["eval_loss"]
        assert of["metrics"]["eval_accuracy"] == expected["eval_accuracy"]
        assert of["metrics"]["eval_rows"] == CASES[name][0]


@pytest.mark.parametrize("name", [*CASES, "loop"])
def test_weights_and_buffers_have_the_same_sha256_at_any_number_of_ranks(in_worlds, name):
    assert len({of["sha256"] for of in each(in_worlds, name).values()}) == 1


@pytest.mark.parametrize("name", IN_TURN)
def test_losses_evaluation_and_buffers_are_those_of_one_process_in_the_order_of_the_plan(in_worlds, name):
    expected = in_worlds[1, 0]["images"]["reference"][name]
    found = in_worlds[3, 0]["images"][name]
    np.testing.assert_allclose(found["losses"], expected["losses"], **NOISE)
    assert found["metrics"]["eval_loss"] == pytest.approx(expected["eval_loss"], abs=1e-5)
    for buffer, value in found["buffers"].items():
        torch.testing.assert_close(value, expected["buffers"][buffer], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_every_micro_batch_that_has_a_variance_is_counted_once_and_a_filler_never(in_worlds, name):
    num_rows, batch_size, _, num_micro_batches, _ = CASES[name]
    sizes = [batch_size] * (num_rows // batch_size) + [num_rows % batch_size] * bool(num_rows % batch_size)
    num_micro = EPOCHS * sum(min(size, num_micro_batches) for size in sizes)
    of_one_value = {"body.7.num_batches_tracked"} if name in ONE_BY_ONE else set()
    for of in each(in_worlds, name).values():
        counted = {buffer: int(value) for buffer, value in of["buffers"].items() if buffer.endswith("tracked")}
        assert counted == {buffer: 0 if buffer in of_one_value else num_micro for buffer in counted}
        assert of["moved"]
        assert of["once"] == [num_rows] * EPOCHS
