"""Numerics: precision and the cut into micro-batches, decided by the first attempt and kept by every later one.

Only a submission that asks for a lower ``micro_batch_size``, as after one that ran out of memory, cuts the same batches
into smaller parts and goes on from where the run was.
"""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal

import torch

from train_func.errors import InvalidInput, StorageFailed
from train_func.records import Numerics, RunRecord
from train_func.storage import Store, find
from train_func.worker.attempt_setup import write_setup
from train_func.worker.rank import reporting
from train_func.worker.training.plan import num_micro_batches

WORTH_IT = 1.2  # times faster bfloat16 must be; below that its rounding buys nothing
ROWS, WIDTH = 1024, 768  # of the product that is timed, like the layers of a small BERT
REPEATS = 4


def measure_numerics(num_micro_batches: int, micro_batch_size: int) -> Numerics:
    """Measures this machine; on a CPU with bfloat16 it takes part of a second."""
    cut = {"num_micro_batches": num_micro_batches, "micro_batch_size": micro_batch_size}
    if torch.cuda.is_available():
        good = torch.cuda.is_bf16_supported(including_emulation=False)
        return Numerics(precision="bf16" if good else "fp32", device=torch.cuda.get_device_name(), **cut)
    able = torch.cpu.get_capabilities()
    name = str(able.get("cpu_name", able["architecture"]))
    if not any(able.get(flag) for flag in ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")):
        return Numerics(precision="fp32", device=name, **cut)
    slow, fast = _seconds()
    precision: Literal["bf16", "fp32"] = "bf16" if slow > WORTH_IT * fast else "fp32"
    return Numerics(precision=precision, device=name, fp32_seconds=slow, bf16_seconds=fast, **cut)


def _seconds() -> tuple[float, float]:
    """Of a forward and backward product in float32, and under autocast to bfloat16: the best of a few each.

    On one thread and by its own clock, so that other work of the machine does not decide.
    """
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(ROWS, WIDTH, generator=generator)
    weights = torch.randn(WIDTH, WIDTH, generator=generator, requires_grad=True)
    best = {True: math.inf, False: math.inf}
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for is_fast in [True, False] * (1 + REPEATS):  # the first of each warms up
        started = time.thread_time()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_fast):
            product = rows @ weights
        torch.autograd.backward(product.sum())
        best[is_fast] = min(best[is_fast], time.thread_time() - started)
    torch.set_num_threads(num_threads)
    return best[False], best[True]


def recorded(store: Store, key: str, measure: Callable[[], Numerics]) -> Numerics:
    """The numerics under ``key``; where there are none, those of ``measure``, unless another process is first."""
    if found := _read(store, key):
        return found
    found = measure()
    try:
        store.put(key, found.to_json(), if_absent=True)
    except StorageFailed as failure:
        if failure.reason != "conflict":
            raise
    return _read(store, key) or found


def _read(store: Store, key: str) -> Numerics | None:
    found = find(store, key)
    return Numerics.from_json(found.data, key) if found else None


def check_ranks(record: RunRecord, world_size: int, numerics: Numerics | None = None) -> None:
    """Raises InvalidInput when there are more ranks than rows, or, where ``numerics`` tell it, than micro-batches."""
    fault = record.run.ranks_fault(world_size)
    if numerics and not fault:
        fault = numerics.idle_ranks_fault(world_size, is_submitted=bool(record.submitted))
    if fault:
        raise InvalidInput(fault)


def numerics_of(record: RunRecord, store: Store, attempt: int, world_size: int, num_ranks: int) -> Numerics:
    """Of rank 0: those recorded, or else measured and recorded; writes down the attempt's setup.

    Args:
        record: of the run.
        store: of the run.
        attempt: its number.
        world_size: ranks that are there.
        num_ranks: that the run asked for, or that another launcher has started at first.
    """
    run = record.run
    if run.task:  # without one a plan may never be asked for
        check_ranks(record, world_size)
    num_cuts = num_micro_batches(run.batch_size, run.micro_batch_size, num_ranks)
    found = recorded(store, record.keys.numerics, partial(measure_numerics, num_cuts, run.micro_batch_size))
    if (size := run.micro_batch_size) < found.micro_batch_size:
        reporting.note(
            f"micro_batch_size is {size} instead of {found.micro_batch_size}: the global batches are the same, and "
            "sums of floating-point numbers are rounded otherwise"
        )
        num_cuts = num_micro_batches(run.batch_size, size, found.num_micro_batches)
        found = replace(found, micro_batch_size=size, num_micro_batches=num_cuts)
    write_setup(store, record, attempt, world_size, found)
    return found
