"""python -m train_func.worker check: all that can be known of a run before any worker starts, all faults at once.

Reads the line ``{"run": {...}, "store": address or null}`` from stdin and prints one JSON line, the last on stdout:
``{"faults": [{"cause", "message"}], "notes": [...], "facts": {...}, "inputs": {...}, "commits": {...}}``. It judges
with the code that the workers load with, imports no torch, and needs seconds; only a Hub data set is downloaded, with
its own cache.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from train_func.counted import counted
from train_func.errors import InvalidInput, StorageFailed
from train_func.run import Run
from train_func.storage import Store, open_store
from train_func.tasks import TextClassification
from train_func.worker.data.cache import machine_cache
from train_func.worker.data.lengths import length_notes
from train_func.worker.data.train_eval_split import TrainEvalSplit, split_rows
from train_func.worker.model.source import FoundModel, find_model

Found = TypeVar("Found")
COPIES = 2  # of the model that must fit beside what is there: one being written, one being published


def main() -> int:
    """Reads the request from stdin, prints the report; 0 also when it holds faults."""
    request = json.loads(sys.stdin.readline())
    report = report_of(request["run"], request["store"], machine_cache(os.environ))
    print(json.dumps(report), flush=True)
    return os.EX_OK


def report_of(fields: dict[str, Any], address: str | None, cache: Path) -> dict[str, Any]:
    """The report on a run given as plain JSON."""
    faults: list[dict[str, str]] = []
    run = _tried(lambda: Run.from_dict(fields), faults)
    if run is None:
        return {"faults": faults, "notes": [], "facts": {}, "inputs": {}, "commits": {}}
    store = _tried(lambda: open_store(address), faults) if address is not None else None
    report = check(run, store, cache)
    return {**report, "faults": faults + report["faults"]}


def check(run: Run, store: Store | None, cache: Path) -> dict[str, Any]:
    """Faults, notes and facts of a run's data and model."""
    faults: list[dict[str, str]] = []
    task = run.task
    assert isinstance(task, TextClassification)
    data = _tried(lambda: split_rows(task, run.seed, store, cache), faults)
    model = _tried(lambda: find_model(task, store, cache, weights=False), faults)
    notes: list[str] = []
    if model is not None:
        notes += model.notes
        faults += _disk_faults(model, cache)
    if data is not None:
        notes += [*data.notes, *_size_notes(run, data)]
    if data is not None and model is not None:
        notes += length_notes(data.train["text"], model.folder, task.max_length)
    fingerprints = {**(data.fingerprints if data else {}), **({"model": model.fingerprint} if model else {})}
    facts = {"fingerprints": fingerprints, **_data_facts(data), **_model_facts(model)}
    return {
        "faults": faults,
        "notes": notes,
        "facts": facts,
        "inputs": _inputs(data, model),
        "commits": _commits(data, model),
    }


def _tried(work: Callable[[], Found], faults: list[dict[str, str]]) -> Found | None:
    """What ``work`` returns, or None with its faults noted."""
    try:
        return work()
    except InvalidInput as error:
        faults += [{"cause": error.cause, "message": fault} for fault in error.faults]
    except StorageFailed as error:
        faults.append({"cause": error.cause, "message": str(error)})
    return None


def _data_facts(data: TrainEvalSplit | None) -> dict[str, Any]:
    if data is None:
        return {}
    return {
        "num_rows": data.num_rows,
        "num_train": data.train.num_rows,
        "num_held_out": data.held_out.num_rows,
        "labels": list(data.labels),
        "guessing": _guessing(data),
    }


def _guessing(data: TrainEvalSplit) -> float:
    """Share of the held-out rows that have the class most frequent in training."""
    most = np.bincount(data.train["label"].to_numpy()).argmax()
    return float(np.mean(data.held_out["label"].to_numpy() == most))


def _model_facts(model: FoundModel | None) -> dict[str, Any]:
    if model is None:
        return {}
    return {"num_model_bytes": model.facts.num_bytes}


def _inputs(data: TrainEvalSplit | None, model: FoundModel | None) -> dict[str, Any]:
    """Files of this machine that the run reads, by the field that names them: a cluster has to be given them."""
    local = {**(data.local if data else {}), **({"model": model.local} if model and model.local else {})}
    return {field: found.to_dict() for field, found in local.items()}


def _commits(data: TrainEvalSplit | None, model: FoundModel | None) -> dict[str, str]:
    """What the Hub's branches and tags are at this moment, by the field of the task that names them."""
    found = {"dataset_revision": data and data.commit, "model_revision": model and model.commit}
    return {field: commit for field, commit in found.items() if commit}


def _disk_faults(model: FoundModel, cache: Path) -> list[dict[str, str]]:
    folder = next(path for path in (cache, *cache.parents) if path.is_dir())
    free, wanted = shutil.disk_usage(folder).free, COPIES * model.facts.num_bytes
    if free >= wanted:
        return []
    message = (
        f"{folder}: {free / 1e6:,.1f} MB free, and {wanted / 1e6:,.1f} MB are expected ({COPIES} copies of the model's "
        f"{model.facts.num_bytes / 1e6:,.1f} MB): make room there, or let TRAIN_FUNC_HOME name a folder on another disk"
    )
    return [{"cause": "storage", "message": message}]


def _size_notes(run: Run, data: TrainEvalSplit) -> list[str]:
    notes = []
    num_train = data.train.num_rows
    if num_train < run.batch_size:
        notes.append(
            f"batch_size={run.batch_size}: there are {num_train} training rows, so every epoch is one smaller step"
        )
    if run.workers > (num_rows := min(run.batch_size, num_train)):
        notes.append(f"workers={run.workers}: a step has {counted(num_rows, 'row')}, so some workers get none")
    return notes
