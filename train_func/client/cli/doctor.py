"""``doctor``: whether a job of this notebook would run on the cluster, and what is missing."""

import argparse
import os
from collections.abc import Callable, Sequence

from train_func.client.cli import Command
from train_func.errors import InvalidInput, TrainFuncError
from train_func.layout import PROBES
from train_func.run import Run
from train_func.storage import open_store
from train_func.text import shown

MISSING = 3


def doctor(given: argparse.Namespace) -> int:
    """Prints one report, every finding with its remedy; 3 when something is missing.

    Nothing is created but a small object in the store, which is removed again.
    """
    from train_func.client.cluster.cluster import Cluster

    asked = {
        "cluster": lambda: Cluster().check(Run()),
        "store": lambda: open_store(Cluster().store_address()).probe(PROBES),
    }
    found = {what: _faults(ask) for what, ask in asked.items()}
    found["store"] = list(dict.fromkeys("as above" if one in found["cluster"] else one for one in found["store"]))
    for what, faults in found.items():
        print(*(shown(f"FAIL  {what}: {fault}") for fault in faults) if faults else (f"ok    {what}",), sep="\n")
    return MISSING if any(found.values()) else os.EX_OK


def _faults(ask: Callable[[], None]) -> Sequence[str]:
    try:
        ask()
    except TrainFuncError as error:
        return error.faults if isinstance(error, InvalidInput) else [str(error)]
    return []


DOCTOR = Command("ask the cluster and the store everything that a submission would; exit code 3: not ready", doctor)
