"""``python -m train_func doctor``: whether a job of this notebook would run on the cluster, and what is missing."""

import os
import sys
from collections.abc import Callable, Sequence

from train_func.client.cluster import Cluster
from train_func.errors import InvalidInput, TrainFuncError
from train_func.run import Run
from train_func.storage import open_store
from train_func.terminal import shown

USAGE = """usage: python -m train_func doctor     ask the cluster and the store everything that a submission would

Backend and store come from the environment (TRAIN_FUNC_*, AWS_*, KUBECONFIG), as for Cluster(). Nothing is created
but a small object in the store, which is removed again. Exit codes: 0 all is ready, 2 wrong usage, 3 something is
missing.
"""
MISSING = 3


def doctor() -> int:
    """Prints one report, every finding with its remedy; the exit code."""
    backend = Cluster()
    asked = {
        "cluster": lambda: backend.check(Run()),
        "store": lambda: open_store(backend.store_address()).probe("probes"),
    }
    found = {what: _faults(ask) for what, ask in asked.items()}
    for what, faults in found.items():
        print(*(shown(f"FAIL  {what}: {fault}") for fault in faults) if faults else (f"ok    {what}",), sep="\n")
    return MISSING if any(found.values()) else os.EX_OK


def _faults(ask: Callable[[], None]) -> Sequence[str]:
    try:
        ask()
    except TrainFuncError as error:
        return error.faults if isinstance(error, InvalidInput) else [str(error)]
    return []


if __name__ == "__main__":
    if sys.argv[1:] != ["doctor"]:
        sys.stderr.write(USAGE)
        sys.exit(2 if sys.argv[1:] not in (["-h"], ["--help"]) else os.EX_OK)
    sys.exit(doctor())
