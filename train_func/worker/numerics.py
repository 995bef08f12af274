"""Numerics: precision and the cut into micro-batches, decided by the first attempt and kept by every later one.

How many micro-batches a global batch is cut into follows from the lengths of the rows, when they are known: on a CPU,
more than some hundred tokens at once are no faster, and need more memory. A submission with a lower
``micro_batch_size``, as after one that ran out of memory, or with more ranks than there are micro-batches cuts the same
batches into smaller parts, and goes on from where the run was.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from train_func.errors import InvalidInput
from train_func.run import ranks_fault
from train_func.storage import Store, find, put_new
from train_func.text import counted, listed
from train_func.wire.records import Numerics, RunRecord
from train_func.worker.attempt_records import processor, write_setup
from train_func.worker.rank import reporting, world
from train_func.worker.training.plan import TOKENS_ON_CPU, Ints

ROWS_ON_GPU = 8  # of a micro-batch, at most
LONGEST = 6  # times so many tokens has a micro-batch of the longest rows, at most
BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")  # flags of CPUs that multiply it themselves


def device_here() -> str:
    """Returns what decides the order in which this rank adds within a micro-batch, and so the last bits of sums."""
    if torch.cuda.is_available():
        kind = torch.cuda.get_device_name()
    else:
        instructions = torch.backends.cpu.get_cpu_capability()
        kind = f"{processor()} with {instructions} and {counted(torch.get_num_threads(), 'thread')}"
    return f"torch {torch.__version__} on {kind}"


def numerics_here(micro_batch_size: int | None, num_ranks: int, devices: Sequence[str]) -> Numerics:
    """Returns the numerics of this machine: bfloat16 where its GPU or CPU has instructions for it."""
    has_gpu = torch.cuda.is_available()
    if has_gpu:
        is_able = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        is_able = any(map(torch.cpu.get_capabilities().get, BFLOAT16))
    return Numerics(
        precision="bf16" if is_able else "fp32",
        micro_batch_tokens=None if has_gpu or micro_batch_size else TOKENS_ON_CPU,
        micro_batch_size=micro_batch_size or (ROWS_ON_GPU if has_gpu else None),
        num_ranks=num_ranks,
        devices=tuple(sorted({*devices})),
    )


def num_micro_batches(numerics: Numerics, lengths: Ints, batch_size: int, world_size: int) -> int:
    """Counts the micro-batches that each global batch of rows of these ``lengths`` is cut into, at least one a rank."""
    least = [batch_size / (numerics.micro_batch_size or batch_size)]
    if tokens := numerics.micro_batch_tokens:
        least += [batch_size * lengths.mean() / tokens, np.sort(lengths)[-batch_size:].sum() / (LONGEST * tokens)]
    num_parts = _for_ranks(numerics.num_ranks, math.ceil(max(least)), batch_size)
    if world_size <= num_parts:
        return num_parts
    num_finer = _for_ranks(world_size, num_parts, batch_size)
    cut = f"{num_finer} micro-batches instead of {num_parts}, at least one for each of {world_size} ranks"
    world.note(f"each global batch is cut into {cut}: {CUT_OTHERWISE}")
    return num_finer


def _for_ranks(num_ranks: int, num_parts: int, batch_size: int) -> int:
    """Returns the least number, not below ``num_parts``, that gives each rank as many parts, while rows last."""
    return min(batch_size, math.ceil(num_parts / num_ranks) * num_ranks)


CUT_OTHERWISE = (
    "the global batches are the same, dropout draws otherwise, BatchNorm normalises smaller groups, and sums are "
    "rounded otherwise"
)


def check_ranks(record: RunRecord, world_size: int) -> None:
    """Raises InvalidInput when there are more ranks than rows of a global batch."""
    if fault := ranks_fault(record.run, world_size):
        raise InvalidInput(fault)


def numerics_of(record: RunRecord, store: Store, attempt: int, devices: Sequence[str], num_ranks: int) -> Numerics:
    """Returns on rank 0 the numerics of the run, which the first attempt records; writes down the attempt's setup.

    Args:
        record: of the run.
        store: of the run.
        attempt: its number.
        devices: on which the ranks that are there compute, one for each.
        num_ranks: that the run asked for, or that another launcher has started at first.
    """
    run = record.run
    if run.task:  # without one a plan may never be asked for
        check_ranks(record, len(devices))
    here = numerics_here(run.micro_batch_size, num_ranks, devices)
    key = record.keys.numerics
    put_new(store, key, here.to_json())
    first = find(store, key)
    numerics = Numerics.from_json(first.data, key) if first else here
    if len({*numerics.devices, *here.devices}) > 1:
        reporting.note(
            f"the ranks of this attempt compute with {listed(here.devices)}, those of the first attempt with "
            f"{listed(numerics.devices)}: they round differently, so the weights of this run may differ in their last "
            "bits from those that one kind alone gives. For the same bits, train all of it on one kind"
        )
    size, first_size = run.micro_batch_size, numerics.micro_batch_size
    if size and size < (first_size or run.batch_size):
        reporting.note(f"micro_batch_size is {size}, lower than in the first attempt: {CUT_OTHERWISE}")
        numerics = replace(numerics, micro_batch_size=size)
    write_setup(store, record, attempt, len(devices), replace(numerics, devices=here.devices))
    return numerics
