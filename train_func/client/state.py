"""One word for the state of a job: from its conditions while it is there, from the store when it is gone."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from train_func.client.observed import JobStatus
from train_func.client.records import ends
from train_func.exits import retryable
from train_func.run import RunRecord
from train_func.storage import Store

FINISHED = ("Succeeded", "Failed", "Cancelled", "Interrupted")
CANCELLED = "cancelled.json"  # in the store, because a cluster keeps nothing of a job that was cancelled


def state_of(status: JobStatus, *, published: Callable[[], bool]) -> str:
    """One word for a job: its newest true condition.

    Args:
        published: whether the store holds the final manifest; a job that nobody controls any more has then succeeded.
    """
    true = {condition.type: condition for condition in status.conditions if condition.status == "True"}
    if "Succeeded" in true:
        return "Succeeded"
    if "Failed" in true:
        return "Cancelled" if true["Failed"].reason == "Cancelled" else "Failed"
    if status.interrupted:
        return "Succeeded" if published() else "Interrupted"
    return next((state for state in ("Suspended", "Restarting", "Running") if state in true), "Created")


def state_in_store(store: Store, record: RunRecord) -> str:
    """What became of a job that is gone from its place: cancelled, deleted, or past its time to live."""
    names = store.names(record.prefix)
    if "result.json" in names:
        return "Succeeded"
    if CANCELLED in names:
        return "Cancelled"
    folder = f"{record.prefix}/attempts"
    attempts = (re.fullmatch(r"(\d+)/", name) for name in store.names(folder))
    *earlier, newest = sorted(int(found[1]) for found in attempts if found) or [0]
    # Without a result.json the function published nothing, and yet all of it was done. Whoever begins again after that
    # finds no group, and has an attempt of its own.
    if _done(_ends(store, record, [f"{folder}/{number}" for number in earlier], r"worker-0\.json")):
        return "Succeeded"
    over = _ends(store, record, [f"{folder}/{newest}"], r"worker-\d+\.json")
    if any(end["exit_code"] and not retryable(end["exit_code"]) for end in over):
        return "Failed"
    return "Succeeded" if _done(over) else "Absent"


def _ends(store: Store, record: RunRecord, folders: Iterable[str], wanted: str) -> list[dict[str, Any]]:
    """The ends in these attempts alone: a listing of all would grow with what else they hold."""
    keys = [f"{folder}/{name}" for folder in folders for name in store.names(folder) if re.fullmatch(wanted, name)]
    return ends(store, record, keys) if keys else []


def _done(over: Iterable[Mapping[str, Any]]) -> bool:
    return any(end["worker"] == end["exit_code"] == 0 for end in over)
