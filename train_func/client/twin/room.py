"""How many workers of a run this machine holds, where the options do not state what each of them takes.

Too many do not fail: they crowd the machine until the kernel kills one process after the other.
"""

from train_func.client import quantity
from train_func.client.twin.machine import Machine
from train_func.run import Run
from train_func.text import counted

# Measured with torch 2.13 on CPU, as memory that the kernel cannot drop: a supervisor has 14 MiB, the template of its
# ranks and one rank together 545 MiB before its model, each further rank 50 to 80 MiB of its own.
WORKER_BYTES = 768 * 2**20
MODEL_COPIES = 4  # weights, gradients, and the two moments of AdamW
WORKERS_PER_CORE = 4  # more only wait for each other


def fault(
    run: Run, machine: Machine, *, num_model_bytes: int, cpu: int | None, memory: str | None, gpu: int
) -> str | None:
    """Why the workers would be too many, with the number that fits; None when they are not.

    Args:
        run: says how many workers it asks for.
        machine: as it is now.
        num_model_bytes: size of the weights that every worker loads.
        cpu: cores of each worker, if stated; then the cores are not counted here.
        memory: memory of each worker, if stated; then the memory is not counted here.
        gpu: GPUs of each worker; without one, its memory holds the model and the state of its training.
    """
    limits = []  # how many workers fit, why no more do, and the option that lifts the limit
    if cpu is None:
        why = (
            f"this machine has {counted(machine.cores, 'core')}, and more than {WORKERS_PER_CORE} workers for each "
            "only wait for each other"
        )
        limits.append((WORKERS_PER_CORE * machine.cores, why, "cpu=1"))
    if memory is None:
        each = WORKER_BYTES + (0 if gpu else MODEL_COPIES * num_model_bytes)
        why = (
            f"each takes about {quantity.readable(each)} of memory, {quantity.readable(run.workers * each)} together; "
            f"this machine has {quantity.readable(machine.memory)}, {quantity.readable(machine.memory_free)} of it free"
        )
        limits.append((machine.memory_free // each, why, "memory=..."))
    passed = [limit for limit in limits if run.workers > limit[0]]
    if not passed:
        return None
    most = min(fitting for fitting, _, _ in passed)
    fewer = f"ask for at most workers={most}" if most else "not even one fits: free memory"
    return (
        f"workers={run.workers}: {'; '.join(why for _, why, _ in passed)}: {fewer}, or state what each takes, as "
        f"Local({', '.join(option for _, _, option in passed)}), and they start all the same"
    )


def note(memory: str | None) -> str:
    """What is said of ``memory`` that was stated, when it is less than a worker takes before it has a model."""
    if memory is None or quantity.whole(memory) >= WORKER_BYTES:
        return ""
    return (
        f"note: memory={memory!r}: a worker takes about {quantity.readable(WORKER_BYTES)} before it has a model, and "
        "is killed above its limit"
    )
