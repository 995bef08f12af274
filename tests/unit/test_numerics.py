"""A run computes in bfloat16 where the processor is made for it, on micro-batches that suit its rows and ranks."""

import dataclasses

import numpy as np
import pytest
import torch

from tests.messages import unnamed
from train_func.worker.numerics import BFLOAT16, num_micro_batches, numerics_here
from train_func.worker.training.plan import NO_TOKENS


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks the CPU")
@pytest.mark.parametrize("flag", ["", *BFLOAT16])
def test_bfloat16_is_taken_where_the_cpu_has_instructions_for_it(monkeypatch, flag):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"architecture": "x86_64", "avx2": True, flag: True})
    numerics = numerics_here(None, 1, ["x", "x"])
    assert (numerics.precision, numerics.devices) == ("bf16" if flag else "fp32", ("x",))


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks the CPU")
@pytest.mark.parametrize(
    "tokens, batch_size, num_ranks, expected",
    [(157, 16, 1, 4), (25, 16, 1, 1), (25, 16, 3, 3), (512, 16, 3, 15), (NO_TOKENS, 16, 1, 2), (2000, 3, 2, 3)],
)
def test_on_a_cpu_a_micro_batch_has_640_tokens_on_average_at_most_and_every_rank_has_one(
    tokens, batch_size, num_ranks, expected
):
    lengths = np.array([tokens - 5, tokens + 5])
    assert num_micro_batches(numerics_here(None, num_ranks, ["x"]), lengths, batch_size, 1) == expected


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks the CPU")
def test_the_longest_rows_of_a_cpu_decide_where_most_rows_are_short():
    lengths = np.array([10] * 1000 + [500] * 64)
    assert num_micro_batches(numerics_here(None, 1, ["x"]), lengths, 64, 1) == 9  # of 3840 tokens or less


@pytest.mark.parametrize(
    "batch_size, micro_batch_size, num_ranks, expected",
    [(16, 8, 1, 2), (16, 8, 2, 2), (16, 8, 3, 3), (16, 8, 4, 4), (64, 8, 3, 9), (2, 8, 4, 2), (1, 1, 5, 1)],
)
def test_a_micro_batch_has_at_most_the_rows_that_the_run_says_whatever_their_lengths(
    batch_size, micro_batch_size, num_ranks, expected
):
    numerics = numerics_here(micro_batch_size, num_ranks, ["x"])
    assert num_micro_batches(numerics, np.array([512]), batch_size, 1) == expected


def test_more_ranks_than_micro_batches_have_one_each_and_a_note_says_that_sums_are_rounded_otherwise(capsys):
    numerics = numerics_here(8, 2, ["x"])
    assert num_micro_batches(numerics, np.array([512]), 16, 2) == 2
    assert capsys.readouterr().out == ""
    assert num_micro_batches(numerics, np.array([512]), 16, 3) == 3
    assert unnamed(capsys.readouterr().out, "3 micro-batches", "3 ranks", "2") == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks the CPU")
def test_a_lower_size_of_a_later_submission_holds_beside_the_tokens_of_the_first():
    lower = dataclasses.replace(numerics_here(None, 1, ["x"]), micro_batch_size=2)
    assert [num_micro_batches(lower, np.array([tokens]), 16, 1) for tokens in (25, 640)] == [8, 16]
