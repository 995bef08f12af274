"""The setup of an attempt: what it computes with, written down once by its rank 0. Loads no torch."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version

from train_func.records import AttemptSetup, Numerics, RunRecord
from train_func.storage import Store
from train_func.version import VERSION

PACKAGES = ("torch", "transformers", "datasets", "accelerate", "tokenizers", "safetensors")


def versions() -> dict[str, str]:
    """Returns the versions of Python, of this package, and of the installed packages that compute."""
    numbers = {"python": platform.python_version(), "train_func": VERSION}
    for name in PACKAGES:
        try:
            numbers[name] = version(name)
        except PackageNotFoundError:  # an own function may run where it is not needed
            continue
    return numbers


def write_setup(store: Store, record: RunRecord, attempt: int, world_size: int, numerics: Numerics | None) -> None:
    """Writes the ``setup.json`` of an attempt; a Session does it again, as it knows the numerics.

    Raises:
        StorageFailed: the store is away or denies.
    """
    setup = AttemptSetup(
        workers=record.run.workers,
        world_size=world_size,
        versions=versions(),
        machine={"name": platform.node(), "system": platform.platform(), "cpus": str(os.cpu_count())},
        numerics=numerics,
    )
    store.put(record.keys.attempt(attempt).setup, setup.to_json())
