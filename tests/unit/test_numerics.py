"""A run computes in bfloat16 where the processor is made for it."""

import pytest
import torch

from train_func.worker.numerics import BFLOAT16, numerics_here


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks the CPU")
@pytest.mark.parametrize("flag", ["", *BFLOAT16])
def test_bfloat16_is_taken_where_the_cpu_has_instructions_for_it(monkeypatch, flag):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"architecture": "x86_64", "avx2": True, flag: True})
    numerics = numerics_here(3, 8, ["x", "x"])
    assert (numerics.num_micro_batches, numerics.micro_batch_size, numerics.devices) == (3, 8, ("x",))
    assert numerics.precision == ("bf16" if flag else "fp32")
