"""A run computes in one way from its first attempt to its last."""

import pytest
import torch

from train_func.storage import open_store
from train_func.wire.records import Numerics
from train_func.worker.training.numerics import BFLOAT16, numerics_here, record_first


def test_the_first_answer_is_kept(tmp_path):
    store = open_store((tmp_path / "store").as_uri())
    first, second = (
        Numerics(precision=precision, num_micro_batches=4, micro_batch_size=8, device="x")
        for precision in ("bf16", "fp32")
    )
    assert record_first(store, "run/numerics.json", first) == first
    assert record_first(store, "run/numerics.json", second) == first


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks the CPU")
@pytest.mark.parametrize("flag", ["", *BFLOAT16])
def test_bfloat16_is_taken_where_the_cpu_has_instructions_for_it(monkeypatch, flag):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"architecture": "x86_64", "avx2": True, flag: True})
    numerics = numerics_here(3, 8)
    assert (numerics.num_micro_batches, numerics.micro_batch_size, numerics.device) == (3, 8, "x86_64")
    assert numerics.precision == ("bf16" if flag else "fp32")
