"""What the attempts of a training leave: each rank's result, what is saved and published, and which faults they have:
another result, an exit that breaks the contract, an armed failpoint that killed nobody, steps done again or left out.

The store is looked at in a process of its own.
"""

import hashlib
import json
import re
import signal
import tempfile
from collections import Counter
from pathlib import Path

from tests.faults import forks, trainings
from train_func.storage import find, open_store
from train_func.wire.exits import DONE, PEER, RENDEZVOUS, STOPPED
from train_func.wire.layout import MODEL_MANIFEST, SUMS
from train_func.wire.result import Result, complete, read_sums

NOTHING, RESULT, MODEL = "nothing", "result", "model"
KILLED = -signal.SIGKILL
ALLOWED = {"kill": {KILLED, PEER, RENDEZVOUS, DONE}, "stop": {STOPPED, PEER, DONE}}
OTHERS = [f"tests/{name}.py" for name in ("distributed/small", "distributed/pods", "job_folder", "runs", "s3_servers")]
PUBLISHED = ("model.safetensors", "metrics.json")  # the same whichever attempt has published; other files name it


def in_store(address):
    """How far publishing has come, and the step of the checkpoint that the next attempt has to go on from, 0 for none.

    A result whose model is not whole is completed, as the next worker would do it.
    """

    def look():
        store, record = open_store(address), trainings.record_of(Path(), address)
        result, manifest = find(store, record.keys.result), find(store, f"{record.keys.model}/{MODEL_MANIFEST}")
        if result and not manifest:
            complete(store, record)
        return MODEL if manifest else RESULT if result else NOTHING, _saved_step(store, record.keys)

    return forks.in_child(look)


def _saved_step(store, keys):
    entries = store.list(f"{keys.checkpoints_of(0)}/")
    newest = max(filter(None, (keys.checkpoint_id(entry.key) for entry in entries)), default=None)
    return newest.step if newest else 0


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


def restored(folder, number, rank):
    """How often the rank has restored a checkpoint in an attempt; None where it was killed in its training."""
    path = folder / f"attempt-{number}" / f"rank-{rank}" / "passed.json"
    passed = json.loads(path.read_text()) if path.exists() else forks.trained(folder, number, rank)
    return None if passed is None else passed.get("checkpoint restored", 0)


def faults(happened):
    """What is not as it should be, by words."""
    found = [f"{name} differs" for name in happened["differs"]]
    for number, (codes, far) in enumerate(zip(happened["codes"], happened["published"], strict=True), 1):
        is_armed = number <= len(happened["drawn"])
        if set(codes) - (ALLOWED[happened["how"]] if is_armed else {DONE}):
            found.append(f"attempt {number} ended with {codes}")
        if codes[0] == DONE and far != MODEL:
            found.append(f"rank 0 ended attempt {number} with 0 before the manifest")
        if happened["how"] == "stop" and any(codes) and STOPPED not in codes:
            found.append(f"attempt {number} was not told as stopped: {codes}")
    lost = _lost_steps(happened) if happened["how"] == "stop" else []
    return [*found, *_not_hit(happened), *_not_resumed(happened), *lost]


def _not_hit(happened):
    """Failpoints that have not ended the rank that they were armed for; the second may lie behind the end."""
    for number, (drawn, is_marked) in enumerate(zip(happened["drawn"], happened["marks"], strict=True), 1):
        where = f"rank {drawn['rank']} of attempt {number}"
        if not is_marked:
            if number == 1:
                yield f"{where} did not come to {drawn['point']!r}"
        elif happened["how"] == "kill" and (code := happened["codes"][number - 1][drawn["rank"]]) != KILLED:
            yield f"{where} was to be killed at {drawn['point']!r} and ended with {code}"


def _not_resumed(happened):
    """Attempts that have not gone on behind the newest checkpoint that the store had when they began."""
    before = [0, *happened["saved"][:-1]]
    for rank, attempts in enumerate(happened["steps"]):
        for number, (step, done) in enumerate(zip(before, attempts, strict=True), 1):
            if done != list(range(step + 1, step + 1 + len(done))):
                yield f"rank {rank} did the steps {done} in attempt {number}, behind a checkpoint of step {step}"
            if step and done and happened["restored"][number - 1][rank] == 0:
                yield f"rank {rank} did steps in attempt {number} without the checkpoint of step {step}"


def _lost_steps(happened):
    """Steps that a rank did twice, or never, though there was time to save them."""
    for rank, attempts in enumerate(happened["steps"]):
        done = [step for attempt in attempts for step in attempt]
        if done != list(range(1, happened["num_steps"] + 1)):
            yield f"rank {rank} did the steps {done}"


def has_resumed(happened):
    """Whether an attempt has gone on behind a checkpoint, and done steps."""
    next_steps = list(enumerate((step + 1 for step in happened["saved"][:-1]), 1))
    return any(of[n][:1] == [step] for of in happened["steps"] for n, step in next_steps if step > 1)


def summary(found):
    """Of many trainings, in words: what has happened to them, and where."""
    first = [of for of in found if of["marks"][0]]
    hit = Counter(f"{of['point']} ({of['rank']})" for line in found for of in _hit(line))
    return (
        f"{sum(map(has_resumed, found))} resumed from a checkpoint; first ends in the training: "
        f"{sum(of['drawn'][0].get('part') == 'training' for of in first)} of {len(first)}; "
        f"second ends: {sum(len(_hit(of)) > 1 for of in found)}\n"
        f"points hit (rank): {', '.join(f'{name} {times}' for name, times in sorted(hit.items()))}"
    )


def _hit(happened):
    return [drawn for drawn, is_marked in zip(happened["drawn"], happened["marks"], strict=True) if is_marked]


def code_sha256():
    """Of all that decides what a fault leads to: what was found with other code proves nothing."""
    root, digest = Path(__file__).parents[2], hashlib.sha256()
    files = [*root.glob("train_func/**/*.py"), *root.glob("tests/faults/*.py")]
    files = [path for path in files if not path.name.startswith("test_")]
    others = [*OTHERS, "requirements.lock"]
    for path in sorted([*files, *(root / name for name in others)]):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
