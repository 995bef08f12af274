"""What a job asks for beyond what this machine has."""

from collections.abc import Mapping
from typing import Any

from train_func.client import quantity
from train_func.client.twin.machine import Machine
from train_func.client.twin.spec import Spec
from train_func.client.twin.substitutes import GPU
from train_func.text import counted


def capacity_faults(manifest: Mapping[str, Any], machine: Machine) -> list[str]:
    """What an admitted job asks for beyond what this machine has."""
    spec = Spec.of(manifest)
    limits = spec.container["resources"]["limits"]
    found = []
    cores = quantity.whole(limits["cpu"])
    if cores > machine.cores:
        found.append(f"each worker asks for {cores} cores; this machine has {machine.cores}: ask for less cpu")
    memory = quantity.whole(limits.get("memory", "0"))
    if memory * spec.num_workers > machine.memory:
        found.append(
            f"{counted(spec.num_workers, 'worker')} with {quantity.readable(memory)} of memory each: "
            f"{quantity.readable(memory * spec.num_workers)} together; this machine has "
            f"{quantity.readable(machine.memory)}, {quantity.readable(machine.memory_free)} of it free: "
            "ask for less memory or for fewer workers"
        )
    gpus = int(limits.get(GPU, 0))
    if gpus * spec.num_workers > len(machine.gpus):
        found.append(
            f"{counted(spec.num_workers, 'worker')} with {counted(gpus, 'GPU')} each; this machine has "
            f"{len(machine.gpus)}: ask for fewer, or leave gpu out"
        )
    return found
