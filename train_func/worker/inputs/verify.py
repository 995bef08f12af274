"""Refuses inputs that are not those that a run was submitted with, by their fingerprints."""

from collections.abc import Mapping

from train_func.errors import Cause, InvalidInput
from train_func.records import RunRecord


def check_unchanged(record: RunRecord, found: Mapping[str, str], cause: Cause) -> None:
    """Raises InvalidInput when an input, by its field, has another fingerprint than at the submission."""
    faults = [
        f"{getattr(record.run.task, field)} has changed since {record.name} was submitted: its fingerprint was "
        f"{record.fingerprints[field]} and is {sha256}; submit again, as a new run"
        for field, sha256 in found.items()
        if record.fingerprints.get(field, sha256) != sha256
    ]
    if faults:
        raise InvalidInput(faults, cause=cause)
