"""One word for the state of a job: from its conditions while it is there, from the store when it is gone."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import groupby

from train_func.attempt_records import EndRecord, Lease
from train_func.client.records import ends
from train_func.client.status import JobStatus
from train_func.errors import StorageFailed
from train_func.exits import retryable
from train_func.records import RunRecord
from train_func.storage import Store

FINISHED = ("Succeeded", "Failed", "Cancelled", "Interrupted")


def state_of(status: JobStatus, *, published: Callable[[], bool]) -> str:
    """One word for a job: its newest true condition.

    Args:
        published: whether the store holds the final manifest; a job that was cancelled, or that has no controller any
            more, has then succeeded.
    """
    true = {condition.type: condition for condition in status.conditions if condition.status == "True"}
    if "Succeeded" in true:
        return "Succeeded"
    if "Failed" in true:
        if true["Failed"].reason != "Cancelled":
            return "Failed"
        return "Succeeded" if published() else "Cancelled"
    if status.interrupted:
        return "Succeeded" if published() else "Interrupted"
    return next((state for state in ("Suspended", "Restarting", "Running") if state in true), "Created")


def mark_cancelled(store: Store, record: RunRecord) -> None:
    """For when nothing of the job is left that could tell it."""
    store.put(record.keys.cancelled, json.dumps({"time": datetime.now(UTC).isoformat()}).encode())


def state_in_store(store: Store, record: RunRecord) -> str:
    """What became of a job that is gone from its backend: cancelled, deleted, or past its time to live."""
    there = {f"{record.keys.prefix}/{name}" for name in store.names(record.keys.prefix)}
    is_published = record.keys.result in there
    if record.keys.cancelled in there:
        return "Succeeded" if is_published else "Cancelled"
    # A function may fail after it has published, and end well without having published anything.
    for _, over in groupby(_newest_ends(store, record), key=lambda end: end.attempt):
        codes = [(end.worker, end.exit_code) for end in over]
        if any(code and not retryable(code) for _, code in codes):
            return "Failed"
        if (0, 0) in codes:
            return "Succeeded"
    return "Succeeded" if is_published else "Absent"


def _newest_ends(store: Store, record: RunRecord) -> list[EndRecord]:
    """The ends in the newest attempt whose group has formed, and after it of workers that found none any more.

    Each attempt is listed by itself: a listing of all would grow with what else they hold.
    """
    numbers = attempt_numbers(store, record)
    formed = next((number for number in reversed(numbers) if _has_formed(store, record.keys.attempt(number).lease)), 0)
    folders = [record.keys.attempt(number).folder for number in numbers if number >= formed]
    keys = [f"{folder}/{name}" for folder in folders for name in store.names(folder)]
    return ends(store, record, keys)


def attempt_numbers(store: Store, record: RunRecord) -> list[int]:
    """The numbers under which the store holds something, in their order."""
    names = (name.removesuffix("/") for name in store.names(record.keys.attempts))
    return sorted(int(name) for name in names if name.isdecimal())


def _has_formed(store: Store, lease: str) -> bool:
    try:
        return Lease.from_json(store.get(lease).data, f"{store.address}/{lease}").formed
    except StorageFailed as failure:
        if failure.reason != "absent":
            raise
        return False
