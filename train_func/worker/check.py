"""What the client asks the worker's code on its own machine: each reads a JSON line and prints one, the last on stdout.

``python -m train_func.worker base`` brings the base model of published adapters to this machine, and names its folder.
Reads ``{"model": address, "revision": branch, tag or commit, "store": address}``, prints ``{"folder": path,
"fingerprint": "..."}``, or ``{"faults": [{"cause", "message"}]}``.

``python -m train_func.worker check`` tells all that can be known of a run before any worker starts, all faults at once.
Reads the line ``{"run": {...}, "store": address or null, "path": [folders to import tasks from]}`` from stdin and
prints one JSON line, the last on stdout: ``{"faults": [{"cause", "message"}], "notes": [...], "facts": {...},
"summary": "...", "inputs": {...}, "commits": {...}, "held_out_sha256": "..."}``. It judges with the code that the
workers load with, and imports no torch. Data sets of the Hub or a store are downloaded, and of a model what is
beside its weights; weights only from a store that has not recorded their SHA-256.

``python -m train_func.worker texts`` tells the beginnings of the texts of some held-out rows, where this machine has
the data of their run: it downloads nothing of the Hub. Reads what ``check`` reads and ``"rows": [ids]``, prints
``{"texts": [...], "fingerprints": {...}}`` in the order of the ids, or ``{"faults": [{"cause", "message"}]}``.
``texts`` is null where rows have none.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from train_func.inputs import key_of
from train_func.run import Run
from train_func.storage import open_store
from train_func.text import counted, cut
from train_func.worker.inputs.cache import machine_cache
from train_func.worker.inputs.findings import Findings
from train_func.worker.inputs.model_folder import ModelUse, find_model
from train_func.worker.inputs.named import find
from train_func.worker.tasks.protocol import WorkerHalf, worker_half

LONGEST = 200  # characters of a text
Request = dict[str, Any]


def main() -> int:
    """Answers ``check``; returns 0 also when there are faults, as ``base`` and ``texts`` do."""
    return _reply(lambda request: report_of(request["run"], request["store"], machine_cache(os.environ)))


def base() -> int:
    """Answers ``base``."""

    def find_base(request: Request) -> dict[str, Any]:
        store, cache = open_store(request["store"]), machine_cache(os.environ)
        model = find_model(request["model"], request["revision"], ModelUse(), store, cache)
        return {"folder": str(model.folder), "fingerprint": model.fingerprint}

    return _reply(find_base)


def texts() -> int:
    """Answers ``texts``."""
    return _reply(lambda request: texts_of(request["run"], request["store"], request["rows"]))


def _reply(answer: Callable[[Request], dict[str, Any]]) -> int:
    """Reads a request from stdin, and prints the answer or its faults."""
    request, findings = json.loads(sys.stdin.readline()), Findings()
    sys.path += [folder for folder in request.get("path", []) if folder not in sys.path]
    print(json.dumps(findings.attempt(lambda: answer(request)) or _faults(findings)), flush=True)
    return os.EX_OK


def _faults(findings: Findings) -> dict[str, Any]:
    return {"faults": [{"cause": cause, "message": message} for cause, message in findings.faults]}


def report_of(fields: dict[str, Any], address: str | None, cache: Path) -> dict[str, Any]:
    """Returns faults, notes and facts of the data, model and inputs of a run given as plain JSON."""
    findings = Findings()
    run = findings.attempt(lambda: Run.from_dict(fields))
    if run is not None:
        store = findings.attempt(lambda: open_store(address)) if address is not None else None
        if run.task and (half := findings.attempt(lambda: worker_half(run, store, cache))):
            faults, findings = findings.faults, half.check()
            findings.faults = faults + findings.faults
        for name, named in run.inputs.items():
            if files := findings.attempt(partial(find, name, named, store, cache)):
                findings.add_named(key_of(name), files)
        findings.notes += _size_notes(run, findings.facts.get("num_train"))
    return {
        **_faults(findings),
        "notes": findings.notes,
        "facts": {"fingerprints": findings.fingerprints, "num_model_bytes": findings.num_model_bytes, **findings.facts},
        "summary": findings.summary,
        "inputs": {field: files.to_dict() for field, files in findings.inputs.items()},
        "commits": findings.commits,
        "held_out_sha256": findings.held_out_sha256,
    }


def texts_of(fields: dict[str, Any], address: str, ids: Sequence[int]) -> dict[str, Any]:
    """Returns the beginnings of the texts of these held-out rows of a run given as plain JSON.

    Raises:
        InvalidInput: the data are not here, or cannot work; StorageFailed: the store is away or denies.
    """
    half = worker_half(Run.from_dict(fields), open_store(address), machine_cache(os.environ))
    if not isinstance(half, WorkerHalf) or type(half).texts is WorkerHalf.texts:  # before images are looked at
        return {"texts": None, "fingerprints": {}}
    rows = half.rows()
    held_out = rows.held_out.with_format("arrow")[:]
    places = pc.index_in(pa.array(ids, held_out["row_id"].type), value_set=held_out["row_id"].combine_chunks())
    table = half.texts(held_out.take(places))
    if table is None:
        return {"texts": None, "fingerprints": dict(rows.fingerprints)}
    columns = [table[name].to_pylist() for name in ("text", "text_pair") if name in table.column_names]
    whole = (" | ".join(filter(None, parts)) for parts in zip(*columns, strict=True))
    short = [cut(text, LONGEST) for text in whole]
    return {"texts": short, "fingerprints": dict(rows.fingerprints)}


def _size_notes(run: Run, num_train: int | None) -> list[str]:
    if num_train is None:
        return []
    notes = []
    if num_train < run.batch_size:
        notes.append(
            f"batch_size={run.batch_size}: there are {num_train} training rows, so every epoch is one smaller step"
        )
    if run.workers > (num_rows := min(run.batch_size, num_train)):
        notes.append(f"workers={run.workers}: a step has {counted(num_rows, 'row')}, so some workers get none")
    return notes
