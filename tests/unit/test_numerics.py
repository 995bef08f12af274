"""A run computes in one way from its first attempt to its last."""

import json

import pytest
import torch

from train_func.storage import open_store
from train_func.worker.training.numerics import Numerics, measure_numerics, recorded


@pytest.fixture
def store(tmp_path):
    return open_store((tmp_path / "store").as_uri())


def test_the_first_answer_is_kept(store):
    first = recorded(store, "run/numerics.json", lambda: Numerics("bf16", 4, "some machine", 0.5, 0.1))
    again = recorded(store, "run/numerics.json", lambda: pytest.fail("asked again"))
    assert first == again == Numerics("bf16", 4, "some machine", 0.5, 0.1)


def test_who_is_second_takes_the_answer_of_the_first(store):
    def ask():
        store.put(
            "run/numerics.json", json.dumps({"precision": "fp32", "num_micro_batches": 2, "device": "x"}).encode()
        )
        return Numerics("bf16", 4, "y")

    assert recorded(store, "run/numerics.json", ask) == Numerics("fp32", 2, "x")


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks the CPU")
def test_bfloat16_is_taken_where_the_cpu_has_it_and_it_is_quicker():
    found = measure_numerics(3)
    assert found.num_micro_batches == 3
    flags = torch.cpu.get_capabilities()
    if not any(flags.get(flag) for flag in ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")):
        assert (found.precision, found.fp32_seconds) == ("fp32", None)
    else:
        assert (found.precision == "bf16") == (found.fp32_seconds > 1.2 * found.bf16_seconds)
