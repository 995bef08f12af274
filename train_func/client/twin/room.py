"""How many workers of a run this machine holds, where nobody has stated what each of them takes.

Too many do not fail: they crowd the machine until the kernel kills one process after the other.
"""

from train_func.client import quantity
from train_func.client.twin.machine import Machine
from train_func.counted import counted
from train_func.run import Run

# Measured with torch 2.13 on CPU, as memory that the kernel cannot drop: a supervisor has 280 to 300 MiB, a rank with
# torch, transformers and datasets 450 MiB before its model.
WORKER_BYTES = 768 * 2**20
MODEL_COPIES = 4  # weights, gradients, and the two moments of AdamW
WORKERS_PER_CORE = 4  # more only wait for each other


def faults(run: Run, machine: Machine, *, num_model_bytes: int, cpu: int | None, memory: str | None) -> list[str]:
    """Why the workers would be too many; empty when they are not, or when what each takes was stated.

    Args:
        run: asks for so many workers.
        machine: as it is now.
        num_model_bytes: size of the weights that every worker loads.
        cpu: cores of each worker, if stated; then the cores are not counted here.
        memory: memory of each worker, if stated; then the memory is not counted here.
    """
    found = []
    if cpu is None and run.workers > (most := WORKERS_PER_CORE * machine.cores):
        found.append(
            f"workers={run.workers}: this machine has {counted(machine.cores, 'core')}, and more than "
            f"{WORKERS_PER_CORE} workers for each only wait for each other: ask for at most workers={most}, or state "
            "what each takes, as Local(cpu=1), and they start all the same"
        )
    each = WORKER_BYTES + (0 if machine.gpus else MODEL_COPIES * num_model_bytes)
    if memory is None and run.workers * each > machine.memory_free:
        most = machine.memory_free // each
        fewer = f"ask for at most workers={most}" if most else "not even one fits: free memory"
        found.append(
            f"workers={run.workers}: each takes about {quantity.readable(each)} of memory, "
            f"{quantity.readable(run.workers * each)} together; this machine has {quantity.readable(machine.memory)}, "
            f"{quantity.readable(machine.memory_free)} of it free: {fewer}, or state what each takes, as "
            "Local(memory='512Mi'), and they start all the same"
        )
    return found
