"""Brings the inputs of a run to local paths, once for all ranks of a worker, while its peers are watched."""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from train_func.errors import InvalidInput
from train_func.inputs import claim_of, key_of, variable_of
from train_func.records import AttemptInputs, ClaimListing, RunRecord
from train_func.storage import Store, find
from train_func.storage.retry import begin
from train_func.worker.environment import Environment
from train_func.worker.inputs.named import bring, link
from train_func.worker.rank import reporting
from train_func.worker.stop import Stop
from train_func.worker.store_wait import TELL, patient, patiently
from train_func.worker.supervisor.group import Member

STORE_SECONDS = 900.0  # for a store that is away while an input is brought

T = TypeVar("T")


class RunInputs:
    """The inputs of a run, as one worker brings them."""

    def __init__(self, environment: Environment, record: RunRecord, store: Store, stop: Stop) -> None:
        self._environment = environment
        self._record = record
        self._store = store
        self._stop = stop
        self._now = ""
        """The input that is brought."""

    def bring(self, member: Member, attempt: int) -> dict[str, str]:
        """Returns the paths of all inputs, by the variables that tell them.

        Raises:
            InvalidInput, StorageFailed: an input cannot be had, or is not what was submitted.
            PeersLost, Stopped: another worker has ended, or a signal has come.
        """
        if not self._record.run.inputs:
            return {}
        paths = self._beside(member, self._all)
        if self._environment.worker == 0:
            self._beside(member, lambda: self._record_claims(paths, attempt))
        return {variable_of(name): str(path) for name, path in paths.items()}

    def _beside(self, member: Member, work: Callable[[], T]) -> T:
        """Has a thread do ``work`` and returns its result; a signal and the loss of a peer end the wait for it."""
        outcome = begin(work)
        notice = time.monotonic() + TELL
        while not outcome.done():
            member.look()
            self._stop.pause(0.05)
            if time.monotonic() >= notice:
                notice = time.monotonic() + TELL
                print(f"still bringing input {self._now!r}")
        return outcome.result()

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

    def _record_claims(self, paths: dict[str, Path], attempt: int) -> None:
        """Writes down what lies in the claims, and says where that differs from what an attempt before has read."""
        addresses = self._record.run.inputs
        claims = {str(claim): paths[name] for name, address in addresses.items() if (claim := claim_of(address))}
        if not claims:
            return
        keys = self._record.keys
        now = AttemptInputs(claims={address: listing(path) for address, path in claims.items()})
        patiently(lambda: self._store.put(keys.attempt(attempt).inputs, now.to_json()), self._stop)
        for number in range(attempt - 1, 0, -1):
            before = patiently(partial(find, self._store, keys.attempt(number).inputs), self._stop)
            if before is None:
                continue
            was = AttemptInputs.from_json(before.data, keys.attempt(number).inputs)
            for address in claims:
                if was.claims.get(address) not in (None, now.claims[address]):
                    reporting.note(f"{address} has changed since attempt {number}: other files, sizes or times")
            return


def listing(path: Path) -> ClaimListing:
    """Returns what lies at a path, by name, size and time; a link is listed and not followed."""
    lines: list[tuple[str, int, int]] = []
    files = (Path(place, name) for place, _, names in os.walk(path) for name in names) if path.is_dir() else [path]
    for file in files:
        status = file.lstat()
        lines.append((str(file.relative_to(path)), status.st_size, status.st_mtime_ns))
    digest = hashlib.sha256(json.dumps(sorted(lines)).encode()).hexdigest()
    return ClaimListing(sha256=digest, num_files=len(lines), num_bytes=sum(size for _, size, _ in lines))
