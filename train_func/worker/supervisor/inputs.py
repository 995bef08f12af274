"""Brings the inputs of a run to local paths, once for all ranks of a worker, while its peers are watched."""

import shutil
import time
from functools import partial
from pathlib import Path

from train_func.errors import InvalidInput
from train_func.inputs import claim_of, key_of, variable_of
from train_func.records import RunRecord
from train_func.storage import Store
from train_func.storage.retry import begin
from train_func.worker.environment import Environment
from train_func.worker.inputs.named import bring, link
from train_func.worker.stop import Stop
from train_func.worker.store_wait import TELL, patient, patiently
from train_func.worker.supervisor.group import Member

STORE_SECONDS = 900.0  # for a store that is away while an input is brought


class RunInputs:
    """The inputs of a run, as one worker brings them."""

    def __init__(self, environment: Environment, record: RunRecord, store: Store, stop: Stop) -> None:
        self._environment = environment
        self._record = record
        self._store = store
        self._stop = stop
        self._now = ""
        """The input that is brought."""

    def bring(self, member: Member) -> dict[str, str]:
        """Returns the paths of all inputs, by the variables that tell them.

        Raises:
            InvalidInput, StorageFailed: an input cannot be had, or is not what was submitted.
            PeersLost, Stopped: another worker has ended, or a signal has come.
        """
        if not self._record.run.inputs:
            return {}
        outcome, notice = begin(self._all), time.monotonic() + TELL  # a signal and the loss of a peer end the wait
        while not outcome.done():
            member.look()
            self._stop.pause(0.05)
            if time.monotonic() >= notice:
                notice = time.monotonic() + TELL
                print(f"still bringing input {self._now!r}")
        return {variable_of(name): str(path) for name, path in outcome.result().items()}

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
            store = patient(self._store, self._stop, STORE_SECONDS, purpose)
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
