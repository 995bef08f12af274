"""What the attempts of a training leave: each rank's result, what is published, and whether exits keep the contract.

The store is looked at in a process of its own.
"""

import hashlib
import json
import re
import tempfile
from pathlib import Path

from tests.faults import forks, trainings
from train_func.exits import DONE, PEER, RENDEZVOUS, STOPPED
from train_func.layout import MODEL_MANIFEST, SUMS
from train_func.result import Result, read_sums
from train_func.storage import find, open_store
from train_func.worker.pod.publish import complete

NOTHING, RESULT, MODEL = "nothing", "result", "model"
ALLOWED = {"kill": {-9, PEER, RENDEZVOUS, DONE}, "stop": {STOPPED, PEER, DONE}}
PUBLISHED = ("model.safetensors", "metrics.json")  # the same whichever attempt has published; other files name it


def published(address):
    """How far publishing has come. A result whose model is not whole is completed, as the next worker would do it."""

    def look():
        store, record = open_store(address), trainings.record_of(Path(), address)
        result = find(store, record.keys.result)
        manifest = find(store, f"{record.keys.model}/{MODEL_MANIFEST}")
        if result and not manifest:
            complete(store, record)
        return MODEL if manifest else RESULT if result else NOTHING

    return forks.in_child(look)


def of_ranks(folder, address, size):
    """What each rank has in the end, and the published files, each with the SHA-256 that the manifest says."""

    def read():
        store, keys = open_store(address), trainings.record_of(Path(), address).keys
        manifest = store.get(f"{keys.model}/{MODEL_MANIFEST}").data
        result = Result.read(manifest, keys.model)
        assert read_sums(store.get(f"{keys.model}/{SUMS}").data) == result.sums
        with tempfile.TemporaryDirectory() as scratch:
            for name, sha256 in result.files.items():
                assert store.download(f"{keys.model}/{name}", Path(scratch, "file")) == sha256, name
        return {name: result.files[name] for name in PUBLISHED if name in result.files}

    ranks = [json.loads((folder / f"result-{rank}.json").read_text()) for rank in range(size)]
    found = {f"rank {rank}: {name}": value for rank, of in enumerate(ranks) for name, value in of.items()}
    return {**found, **forks.in_child(read)}


def steps_of(folder, number, rank):
    """The steps that the rank has done in an attempt."""
    return [int(step) for step in re.findall(r"^step (\d+) is done$", forks.output(folder, number, rank), re.MULTILINE)]


def faults(happened):
    """What is not as it should be, by words."""
    found = [f"{name} differs" for name in happened["differs"]]
    if happened["how"] == "kill" and not any(happened["codes"][0]):
        found.append("no rank was killed")
    for number, (codes, far) in enumerate(zip(happened["codes"], happened["published"], strict=True), 1):
        is_armed = number <= len(happened["drawn"])
        if set(codes) - (ALLOWED[happened["how"]] if is_armed else {DONE}):
            found.append(f"attempt {number} ended with {codes}")
        if codes[0] == DONE and far != MODEL:
            found.append(f"rank 0 ended attempt {number} with 0 before the manifest")
        if happened["how"] == "stop" and any(codes) and STOPPED not in codes:
            found.append(f"attempt {number} was not told as stopped: {codes}")
    return [*found, *(_lost_steps(happened) if happened["how"] == "stop" else [])]


def _lost_steps(happened):
    """Steps that a rank did twice, or never, though there was time to save them."""
    for rank, attempts in enumerate(happened["steps"]):
        done = [step for attempt in attempts for step in attempt]
        if done != list(range(1, happened["num_steps"] + 1)):
            yield f"rank {rank} did the steps {done}"


def code_sha256():
    """Of all that decides what a fault leads to: what was found with other code proves nothing."""
    root, digest = Path(__file__).parents[2], hashlib.sha256()
    files = [*root.glob("train_func/**/*.py"), *root.glob("tests/faults/*.py")]
    others = ("tests/distributed/small.py", "tests/s3_servers.py", "requirements.lock")
    for path in sorted([*files, *(root / name for name in others)]):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
