"""Adapters learn the same at any number of ranks, and what peft and transformers' Trainer teach them in one process."""

import numpy as np
import pytest

from tests.distributed.conftest import HANG
from tests.distributed.lora import SIZES
from tests.distributed.worlds import ALONE_AND_UGLY

pytestmark = pytest.mark.timeout(HANG)
NOISE = {"rtol": 0, "atol": 1e-5}
PLACES = [(size, rank) for size in ALONE_AND_UGLY for rank in range(size)]


@pytest.mark.parametrize("num_rows", SIZES)
def test_the_loss_of_every_step_is_that_of_peft_with_transformers_trainer(in_worlds, num_rows):
    stock = in_worlds[1, 0]["lora"][num_rows]["stock"]
    for place in PLACES:
        found = in_worlds[place]["lora"][num_rows]
        np.testing.assert_allclose(found["losses"], stock["losses"], **NOISE)
    assert stock["losses"][-1] < stock["losses"][0] - 0.3  # it does learn


@pytest.mark.parametrize("num_rows", SIZES)
def test_the_metrics_are_the_same_on_all_ranks_and_at_any_world_size(in_worlds, num_rows):
    expected = in_worlds[1, 0]["lora"][num_rows]["metrics"]
    for place in PLACES:
        found = in_worlds[place]["lora"][num_rows]["metrics"]
        assert found["eval_loss"] == expected["eval_loss"]
        assert found["eval_perplexity"] == pytest.approx(np.exp(found["eval_loss"]), rel=1e-5)
        assert found["eval_token_accuracy"] == expected["eval_token_accuracy"]
        assert found["eval_rows"] == expected["eval_rows"]


@pytest.mark.parametrize("num_rows", SIZES)
def test_the_adapters_have_the_same_sha256_and_the_weights_of_the_model_stay_as_they_were(in_worlds, num_rows):
    expected = in_worlds[1, 0]["lora"][num_rows]["sha256"]
    for place in PLACES:
        found = in_worlds[place]["lora"][num_rows]
        assert found["is_base_untouched"]
        assert found["sha256"] == expected
