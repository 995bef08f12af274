"""Calling: train_func called as it is, in a notebook or by another launcher, without a submitted job."""

import itertools
import json
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from train_func.errors import InvalidInput
from train_func.home import home
from train_func.layout import RUN
from train_func.records import RunRecord
from train_func.run import RECORD_KEY
from train_func.storage import Store
from train_func.worker.pod import reporting
from train_func.worker.pod.attempt_store import Attempts
from train_func.worker.pod.publish import complete

ATTEMPT = 1  # of every call, which is a generation of its own


def record_of(parameters: Mapping[str, Any], environment: Mapping[str, str]) -> tuple[RunRecord, bool]:
    """The record inside the parameters of train_func, and whether it was called without a launcher.

    Raises:
        InvalidInput: when ``parameters`` are no Run, or several processes, or a pod, have no store to publish to.
    """
    if (job := environment.get("TRAIN_FUNC_JOB_DIR")) and RECORD_KEY not in parameters:
        return RunRecord.from_dict(json.loads(Path(job, RUN).read_text())), False  # it gave its parameters as they are
    record = RunRecord.from_parameters(parameters, environment.get("TRAIN_FUNC_STORE", ""))
    launched = "RANK" in environment or "TRAIN_FUNC_ATTEMPT" in environment
    if not record.store and launched:
        raise InvalidInput(
            "session.publish needs a store, and this run has none: submit it, or set TRAIN_FUNC_STORE for every "
            "process, for example to file:///tmp/models (a folder inside a pod is gone with the pod)"
        )
    is_call = not launched and (not record.source_sha256 or not record.store)
    return (record if record.store else replace(record, store=(home(environment) / "store").as_uri())), is_call


def begin(store: Store, record: RunRecord, *, is_call: bool) -> tuple[RunRecord, int]:
    """The record and the number of an attempt that no supervisor has begun.

    Raises:
        InvalidInput: the run has a result already.
    """
    if is_call:
        return claim(store, record), ATTEMPT
    if complete(store, record):
        raise InvalidInput(
            f"{record.name} has a result in {store.address} already: fetch the model from {record.keys.model} there, "
            "or train a new generation with fresh=True"
        )
    return record, Attempts(store, record, worker=0, pod=socket.gethostname()).claim().attempt


def claim(store: Store, record: RunRecord) -> RunRecord:
    """The record with the next unused generation, so that a call neither finds nor replaces a result."""
    for generation in itertools.count(1):
        own = replace(record, generation=generation)
        if store.names(own.keys.prefix):
            continue
        if Attempts(store, own, worker=0, pod=socket.gethostname()).claim().attempt == ATTEMPT:
            reporting.note(
                f"train_func was called without a launcher: one rank, generation {generation}; it publishes to "
                f"{store.address}/{own.keys.model}"
            )
            return own
    raise AssertionError("numbers do not end")
