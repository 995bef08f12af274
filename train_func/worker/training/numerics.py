"""Numerics: precision and the cut into micro-batches, decided by the first attempt and kept by every later one.

Only a submission that asks for a lower ``micro_batch_size``, as after one that ran out of memory, cuts the same batches
into smaller parts and goes on from where the run was.
"""

from dataclasses import replace

import torch

from train_func.errors import InvalidInput, StorageFailed
from train_func.storage import Store, find
from train_func.wire.records import Numerics, RunRecord
from train_func.worker.attempt_records import write_setup
from train_func.worker.rank import reporting
from train_func.worker.training.plan import num_micro_batches

BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")  # flags of CPUs that multiply it themselves


def numerics_here(num_micro_batches: int, micro_batch_size: int) -> Numerics:
    """Returns the numerics of this machine: bfloat16 where its GPU or CPU has instructions for it."""
    if torch.cuda.is_available():
        device, is_able = torch.cuda.get_device_name(), torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        flags = torch.cpu.get_capabilities()
        device, is_able = str(flags.get("cpu_name", flags["architecture"])), any(map(flags.get, BFLOAT16))
    return Numerics(
        precision="bf16" if is_able else "fp32",
        num_micro_batches=num_micro_batches,
        micro_batch_size=micro_batch_size,
        device=device,
    )


def record_first(store: Store, key: str, numerics: Numerics) -> Numerics:
    """Returns the numerics under ``key``: those of the first process that has recorded any, be it this one."""
    try:
        store.put(key, numerics.to_json(), if_absent=True)
    except StorageFailed as failure:
        if failure.reason != "conflict":
            raise
    first = find(store, key)
    return Numerics.from_json(first.data, key) if first else numerics


def check_ranks(record: RunRecord, world_size: int, numerics: Numerics | None = None) -> None:
    """Raises InvalidInput when there are more ranks than rows, or, where ``numerics`` tell it, than micro-batches."""
    fault = record.run.ranks_fault(world_size)
    if numerics and not fault:
        fault = numerics.idle_ranks_fault(world_size)
    if fault:
        raise InvalidInput(fault)


def numerics_of(record: RunRecord, store: Store, attempt: int, world_size: int, num_ranks: int) -> Numerics:
    """Returns on rank 0 the numerics of the run, which the first attempt records; writes down the attempt's setup.

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
    size = run.micro_batch_size
    num_parts = num_micro_batches(run.batch_size, size, num_ranks)
    numerics = record_first(store, record.keys.numerics, numerics_here(num_parts, size))
    if size < numerics.micro_batch_size:
        reporting.note(
            f"micro_batch_size is {size} instead of {numerics.micro_batch_size}: the global batches are the same, and "
            "sums of floating-point numbers are rounded otherwise"
        )
        num_parts = num_micro_batches(run.batch_size, size, numerics.num_micro_batches)
        numerics = replace(numerics, micro_batch_size=size, num_micro_batches=num_parts)
    write_setup(store, record, attempt, world_size, numerics)
    return numerics
