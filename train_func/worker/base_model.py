"""python -m train_func.worker base: brings the base model of published adapters to this machine, and names its folder.

Reads the line ``{"model": address, "revision": branch, tag or commit, "store": address}`` from stdin and prints one
JSON line, the last on stdout: ``{"folder": path, "fingerprint": "..."}``, or ``{"faults": [{"cause", "message"}]}``. It
finds the model with the code that the workers find it with, and imports no torch.
"""

import json
import os
import sys
from typing import Any

from train_func.storage import open_store
from train_func.worker.inputs.cache import machine_cache
from train_func.worker.inputs.findings import Findings
from train_func.worker.inputs.model import ModelUse, find_model


def main() -> int:
    """Reads the request from stdin, prints the answer; 0 also when it holds faults."""
    print(json.dumps(answer_to(json.loads(sys.stdin.readline()))), flush=True)
    return os.EX_OK


def answer_to(request: dict[str, Any]) -> dict[str, Any]:
    """The folder of the model and its fingerprint, or the faults."""
    found = Findings()
    store = found.tried(lambda: open_store(request["store"]))
    model = found.tried(
        lambda: find_model(request["model"], request["revision"], ModelUse(), store, machine_cache(os.environ))
    )
    if model is None or found.faults:
        return {"faults": [{"cause": cause, "message": message} for cause, message in found.faults]}
    return {"folder": str(model.folder), "fingerprint": model.fingerprint}
