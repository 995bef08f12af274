"""What an attempt writes into the store beside its results: its lease, which is the fence, and its setup.

An attempt is over as soon as a later one has begun, and then it saves and publishes nothing any more. It may outlive
its place, as behind a cut network, while the next one trains. Attempts have leases in the store, which are numbered and
created if absent. What is written under the number of an attempt hurts no other one; whatever counts for the run is
written right after a look for a lease with a higher number. The setup says what the attempt computes with; its rank 0
writes it down once. Loads no torch.
"""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from train_func.errors import StorageFailed
from train_func.storage import Store, find
from train_func.version import VERSION
from train_func.wire.records import AttemptSetup, Lease, Numerics, RunRecord

PACKAGES = ("torch", "transformers", "datasets", "accelerate", "tokenizers", "safetensors")


class Fenced(StorageFailed):
    """A later attempt of the run has begun."""


def check_lease(store: Store, record: RunRecord, attempt: int) -> None:
    """Raises Fenced where a group of workers has formed for a later attempt, or the store's own failure.

    Its reason is "replaced" where that attempt is of the same job, as of an elastic group that goes on without this
    worker, and which this worker may join; else it is "conflict".
    """
    folders = (name.removesuffix("/") for name in store.names(record.keys.attempts))
    for number in sorted(int(name) for name in folders if name.isdecimal() and int(name) > attempt):
        key = record.keys.attempt(number).lease
        lease = find(store, key)
        if lease is None:
            continue
        try:
            later = Lease.from_json(lease.data, key)
        except StorageFailed:  # of another version of this package
            later = Lease(attempt=number)
        if later.formed:
            is_same_job = record.submission > 0 and later.submitted == record.submitted
            raise Fenced(
                f"attempt {number} of {record.name} has begun, as {store.address}/{key} says: this attempt, {attempt}, "
                "can save and publish nothing any more",
                reason="replaced" if is_same_job else "conflict",
            )


def versions() -> dict[str, str]:
    """Returns the versions of Python, of this package, and of the installed packages that compute."""
    numbers = {"python": platform.python_version(), "train_func": VERSION}
    for name in PACKAGES:
        try:
            numbers[name] = version(name)
        except PackageNotFoundError:  # an own function may run where it is not needed
            continue
    return numbers


def processor() -> str:
    """Returns the model of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()  # the second starts a program


def write_setup(store: Store, record: RunRecord, attempt: int, world_size: int, numerics: Numerics | None) -> None:
    """Writes the ``setup.json`` of an attempt; a Session does it again, as it knows the numerics.

    Raises:
        StorageFailed: the store is away or denies.
    """
    setup = AttemptSetup(
        workers=record.run.workers,
        world_size=world_size,
        versions=versions(),
        machine={
            "name": platform.node(),
            "system": platform.platform(),
            "cpus": str(os.cpu_count()),
            "processor": processor(),
            "threads": os.environ.get("OMP_NUM_THREADS", ""),
        },
        numerics=numerics,
    )
    store.put(record.keys.attempt(attempt).setup, setup.to_json())
