"""Numerics: precision and the cut into micro-batches, decided by the first attempt and kept by every later one.

Only a submission that asks for a lower ``micro_batch_size``, as after one that ran out of memory, cuts the same batches
into smaller parts and goes on from where the run was.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from train_func.errors import InvalidInput
from train_func.run import ranks_fault
from train_func.storage import Store, find, put_new
from train_func.tasks import CausalLM
from train_func.text import counted, listed
from train_func.wire.records import Numerics, RunRecord
from train_func.worker.attempt_records import processor, write_setup
from train_func.worker.rank import reporting
from train_func.worker.training.plan import num_micro_batches

MICRO_BATCH_SIZE = 8  # by default
OF_LANGUAGE_MODEL_ON_CPU = 4  # long rows: fewer of them need less memory and padding, and are as fast
BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")  # flags of CPUs that multiply it themselves


def device_here() -> str:
    """Returns what decides the order in which this rank adds within a micro-batch, and so the last bits of sums."""
    if torch.cuda.is_available():
        kind = torch.cuda.get_device_name()
    else:
        instructions = torch.backends.cpu.get_cpu_capability()
        kind = f"{processor()} with {instructions} and {counted(torch.get_num_threads(), 'thread')}"
    return f"torch {torch.__version__} on {kind}"


def numerics_here(num_micro_batches: int, micro_batch_size: int, devices: Sequence[str]) -> Numerics:
    """Returns the numerics of this machine: bfloat16 where its GPU or CPU has instructions for it."""
    if torch.cuda.is_available():
        is_able = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        is_able = any(map(torch.cpu.get_capabilities().get, BFLOAT16))
    return Numerics(
        precision="bf16" if is_able else "fp32",
        num_micro_batches=num_micro_batches,
        micro_batch_size=micro_batch_size,
        devices=tuple(sorted({*devices})),
    )


def record_first(store: Store, key: str, numerics: Numerics) -> Numerics:
    """Returns the numerics under ``key``: those of the first process that has recorded any, be it this one."""
    put_new(store, key, numerics.to_json())
    first = find(store, key)
    return Numerics.from_json(first.data, key) if first else numerics


def check_ranks(record: RunRecord, world_size: int, numerics: Numerics | None = None) -> None:
    """Raises InvalidInput when there are more ranks than rows, or, where ``numerics`` tell it, than micro-batches."""
    fault = ranks_fault(record.run, world_size)
    if numerics and not fault:
        fault = numerics.idle_ranks_fault(world_size)
    if fault:
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
    has_long_rows = isinstance(run.task, CausalLM) and not torch.cuda.is_available()
    size = run.micro_batch_size or (OF_LANGUAGE_MODEL_ON_CPU if has_long_rows else MICRO_BATCH_SIZE)
    here = numerics_here(num_micro_batches(run.batch_size, size, num_ranks), size, devices)
    numerics = record_first(store, record.keys.numerics, here)
    if len({*numerics.devices, *here.devices}) > 1:
        reporting.note(
            f"the ranks of this attempt compute with {listed(here.devices)}, those of the first attempt with "
            f"{listed(numerics.devices)}: they round differently, so the weights of this run may differ in their last "
            "bits from those that one kind alone gives. For the same bits, train all of it on one kind"
        )
    size = run.micro_batch_size or numerics.micro_batch_size
    if size < numerics.micro_batch_size:
        reporting.note(
            f"micro_batch_size is {size} instead of {numerics.micro_batch_size}: the global batches are the same, and "
            "sums of floating-point numbers are rounded otherwise"
        )
        num_parts = num_micro_batches(run.batch_size, size, numerics.num_micro_batches)
        numerics = replace(numerics, micro_batch_size=size, num_micro_batches=num_parts)
    write_setup(store, record, attempt, len(devices), replace(numerics, devices=here.devices))
    return numerics
