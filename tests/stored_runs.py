"""Runs as jobs leave them in a store, written without a job; and stores of every kind to put them in."""

import contextlib
import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.s3_servers import only_these, s3_server
from train_func import Local
from train_func.client import backend as backends
from train_func.client.stored_run import Submission
from train_func.run import Run, name_of
from train_func.storage import Store
from train_func.wire.layout import CHECKPOINT_MANIFEST, MODEL_MANIFEST, SUMS, CheckpointId, newest_number
from train_func.wire.predictions import PREDICTIONS, Predictions
from train_func.wire.records import EndRecord, Lease, RunRecord
from train_func.wire.result import FileEntry, Result, read_sums, write_sums

HASH = "5" * 64


def put_run(
    store: Store,
    run: Run,
    *,
    function: str = "train",
    generation: int = 1,
    submitted: str = "2026-01-02T03:04:05.000+00:00",
    code: int | None = 0,
    metrics: dict[str, Any] | None = None,
    returned: dict[str, Any] | None = None,
    note: str = "",
    source: str = "0",
    wheels: dict[str, str] | None = None,
    backend: Any = None,
) -> RunRecord:
    """A run with one attempt, whose workers ended with ``code``; of a success with a result, and a model of one file.

    Without ``code`` no worker has ended. Its job is, or was, one of ``backend``.
    """
    made_of: dict[str, Any] = {"function": function, "source_sha256": source, "fingerprints": {}}
    record = RunRecord(
        run=run,
        name=name_of(run, **made_of, packages=wheels),
        wheels=wheels or {},
        generation=generation,
        store=store.address,
        submission=1,
        submitted=submitted,
        **made_of,
    )
    keys = record.keys.attempt(1)
    put_submission(store, record, backend)
    store.put(keys.lease, Lease(attempt=1, generation=generation, submitted=submitted).to_json())
    for worker in range(run.workers if code is not None else 0):
        cause = None if code == 0 else "code"
        end = EndRecord(attempt=1, worker=worker, exit_code=code or 0, cause=cause, message="", submitted=submitted)
        put_end(store, record, end)
        store.put(keys.log(worker), b"a line\n")
    if code == 0:
        report = {"metrics": metrics or {}, "returned": returned or {}, "note": note}
        result = Result.write(1, generation, report, {"weights": FileEntry(7, HASH)})
        store.put(f"{keys.model}/weights", b"weights")
        store.put(record.keys.result, result)
        store.put(f"{record.keys.model}/weights", b"weights")
        store.put(f"{record.keys.model}/{SUMS}", write_sums({"weights": HASH}))
        store.put(f"{record.keys.model}/{MODEL_MANIFEST}", result)
    return record


def put_predictions(store: Store, record: RunRecord, predictions: Predictions) -> None:
    """What the model of a run predicts of the held-out rows, as if it had been published with it."""
    key, data = f"{record.keys.attempt(1).model}/{PREDICTIONS}", predictions.to_json()
    published = json.loads(store.get(record.keys.result).data)
    published["files"][PREDICTIONS] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    store.put(record.keys.result, json.dumps(published).encode())
    store.put(key, data)


def put_end(store: Store, record: RunRecord, end: EndRecord) -> None:
    """How a worker has ended, and what counts of it in the name of an object, as its supervisor writes both."""
    keys = record.keys.attempt(end.attempt)
    store.put(keys.end(end.worker), end.to_json())
    store.put(keys.end_mark_key(end.facts), b"")


def put_submission(store: Store, record: RunRecord, here: Any = None, **shape: Any) -> RunRecord:
    """Another submission of the run, to ``here`` or this home; ``shape``: other fields of it."""
    number = newest_number(store.names(record.keys.submissions)) + 1
    record = replace(record, submission=number)
    here = here or Local(store=store.address)
    fields = {
        "run": record,
        "cells": {},
        "manifest": {},
        "backend": backends.name_of_backend(here),
        "place": here.place,
        "identity": here.identity,
        "found_by": here.found_by,
        "options": {},
    }
    store.put(record.keys.submission(number), Submission(**{**fields, **shape}).to_json())
    return record


def put_checkpoint(store: Store, record: RunRecord, step: int, training: int = 0) -> None:
    """What a client sees of the checkpoints of one training of the function, without the files of any."""
    for number in (step - 1, step):
        checkpoint = record.keys.checkpoint(CheckpointId(training, 1, number))
        store.put(f"{checkpoint}/{CHECKPOINT_MANIFEST}", b"{}")


class Sent:
    """A store that notes each file that it sends or is sent."""

    def __init__(self, store: Store) -> None:
        self._store, self.address, self.calls = store, store.address, list[str]()

    def __getattr__(self, name: str) -> Any:
        if name in ("upload", "download"):
            self.calls.append(name)
        return getattr(self._store, name)


def whole_model(store: Store, folder: str, to: Path) -> Path:
    """The folder of a model, as ``mc cp -r`` brings it; it holds what ``sha256sum -c`` has found, and nothing else."""
    shutil.rmtree(to, ignore_errors=True)
    for entry in store.list(f"{folder}/"):
        path = to / entry.key.removeprefix(f"{folder}/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(store.get(entry.key).data)
    sums = read_sums((to / SUMS).read_bytes())
    found = {path.relative_to(to).as_posix(): path.read_bytes() for path in to.rglob("*") if path.is_file()}
    del found[SUMS]
    assert {name: hashlib.sha256(data).hexdigest() for name, data in found.items()} == sums
    return to


@contextlib.contextmanager
def store_address(kind: str, folder: Path) -> Iterator[str]:
    """Of a new store: ``folder``, or one on an S3 server of this kind."""
    if kind == "folder":
        yield (folder / "store").as_uri()
        return
    with s3_server(kind, folder) as server, pytest.MonkeyPatch.context() as patched:
        only_these(patched, server.environment)
        yield f"s3://{server.bucket}/runs"
