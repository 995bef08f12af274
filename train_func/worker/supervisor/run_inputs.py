"""Brings what was submitted to local paths, once for all ranks of a worker: the source, which is verified, and inputs.

Inputs are brought while the worker's peers are watched.
"""

import hashlib
import json
import shutil
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from train_func.errors import InvalidInput
from train_func.inputs import claim_of, key_of, variable_of
from train_func.process.timeout import begin
from train_func.storage import Store
from train_func.wire.layout import CELLS, RUN, SOURCE
from train_func.wire.records import RunRecord, SubmissionRecord
from train_func.worker.environment import Environment
from train_func.worker.inputs.named import bring, link
from train_func.worker.stop import Stop
from train_func.worker.store_wait import NOTICE_SECONDS, patient, patiently

INPUT_SECONDS = 900.0  # for a store that is away while an input is brought
_folder = threading.Lock()  # of the inputs of this process: an attempt that has ended may still bring some


def bring_submission(store: Store, key: str, folder: Path) -> RunRecord:
    """Writes the run, the source and its cells into ``folder``; returns the record of the run.

    Raises:
        InvalidInput: cause "source": the source is not the one that was submitted.
        StorageFailed: the store cannot be read, or has no such submission, or one of another format.
    """
    submission = SubmissionRecord.from_json(store.get(key).data, f"{store.address}/{key}")
    record = submission.run
    source = store.get(record.keys.source).data
    sha256 = hashlib.sha256(source).hexdigest()
    if sha256 != record.source_sha256:
        raise InvalidInput(
            f"{store.address}/{record.keys.source} has SHA-256 {sha256}, and {record.source_sha256} was submitted: the "
            "text was changed or cut short. Submit again with fresh=True, and see who writes to the store",
            cause="source",
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SOURCE).write_bytes(source)
    (folder / CELLS).write_text(json.dumps(submission.cells))
    (folder / RUN).write_bytes(record.to_json())
    return record


class RunInputs:
    """Brings the inputs of a run to one worker."""

    def __init__(self, environment: Environment, record: RunRecord, store: Store, stop: Stop) -> None:
        self._environment = environment
        self._record = record
        self._store = store
        self._stop = stop
        self._now = next(iter(record.run.inputs), "")
        """The input that is on its way."""

    def bring(self, look: Callable[[], object]) -> dict[str, str]:
        """Returns the paths of all inputs, by the variables that hold them.

        ``look``: called while they are on their way; its errors end the wait.

        Raises:
            InvalidInput, StorageFailed: an input cannot be read, or has changed since it was submitted.
            Stopped: a signal has come.
        """
        if not self._record.run.inputs:
            return {}
        outcome = begin(self._all_alone)  # a signal and the loss of a peer end the wait
        notice = time.monotonic() + NOTICE_SECONDS
        while not outcome.done():
            look()
            self._stop.pause(0.05)
            if time.monotonic() >= notice:
                notice = time.monotonic() + NOTICE_SECONDS
                print(f"still bringing input {self._now!r}")
        return {variable_of(name): str(path) for name, path in outcome.result().items()}

    def _all_alone(self) -> dict[str, Path]:
        with _folder:
            return self._all()

    def _all(self) -> dict[str, Path]:
        folder = self._environment.work_dir / "inputs"
        shutil.rmtree(folder, ignore_errors=True)  # what an earlier attempt in this pod has written there
        paths = {}
        faults: list[str] = []
        cache, claims = self._environment.cache_dir, self._environment.claims_dir
        for name, address in self._record.run.inputs.items():
            self._now = name
            begun = time.monotonic()
            expected, purpose = self._record.fingerprints[key_of(name)], f"bring input {name!r}"
            store = patient(self._store, self._stop, INPUT_SECONDS, purpose)
            call = partial(bring, name, address, expected, store, cache, claims)
            try:
                path = patiently(call, self._stop, purpose=purpose)  # of another store than the run's, or the Hub
                if not claim_of(address):  # which is read-only, and may hold millions of files
                    path = link(path, folder, name, expected)
            except InvalidInput as refused:
                faults += refused.faults
            else:
                paths[name] = path
                print(f"input {name!r} is {path} ({time.monotonic() - begun:.1f} s)")
        if faults:
            raise InvalidInput(faults, cause="data")
        return paths
