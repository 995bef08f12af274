"""A run computes in one way from its first attempt to its last."""

import pytest
import torch

from train_func.records import Numerics
from train_func.storage import open_store
from train_func.worker.training.numerics import measure_numerics, recorded


@pytest.fixture
def store(tmp_path):
    return open_store((tmp_path / "store").as_uri())


def numerics(precision, cut, **seconds):
    return Numerics(precision=precision, num_micro_batches=cut, micro_batch_size=8, device="x", **seconds)


def test_the_first_answer_is_kept(store):
    first = recorded(store, "run/numerics.json", lambda: numerics("bf16", 4, fp32_seconds=0.5, bf16_seconds=0.1))
    again = recorded(store, "run/numerics.json", lambda: pytest.fail("asked again"))
    assert first == again == numerics("bf16", 4, fp32_seconds=0.5, bf16_seconds=0.1)


def test_who_is_second_takes_the_answer_of_the_first(store):
    def ask():
        store.put("run/numerics.json", numerics("fp32", 2).to_json())
        return numerics("bf16", 4)

    assert recorded(store, "run/numerics.json", ask) == numerics("fp32", 2)


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks the CPU")
def test_bfloat16_is_taken_where_the_cpu_has_it_and_it_is_quicker():
    found = measure_numerics(3, 8)
    assert (found.num_micro_batches, found.micro_batch_size) == (3, 8)
    flags = torch.cpu.get_capabilities()
    if not any(flags.get(flag) for flag in ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")):
        assert (found.precision, found.fp32_seconds) == ("fp32", None)
    else:
        assert (found.precision == "bf16") == (found.fp32_seconds > 1.2 * found.bf16_seconds)
