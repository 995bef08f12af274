"""The cut of a run's global batches into micro-batches: made by its first attempt, kept by every later one.

Only a submission that asks for a lower ``micro_batch_size``, as after one that ran out of memory, cuts the same batches
into smaller parts and goes on from where the run was.
"""

from dataclasses import replace
from functools import partial

from train_func.errors import InvalidInput
from train_func.records import Numerics, RunRecord
from train_func.storage import Store
from train_func.worker.attempt_setup import write_setup
from train_func.worker.pod import reporting
from train_func.worker.training.numerics import measure_numerics, recorded
from train_func.worker.training.plan import num_micro_batches


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
