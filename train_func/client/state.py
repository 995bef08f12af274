"""One word for the state of a job: from its conditions while it is there, from the store when it is gone."""

import re
from collections.abc import Callable

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
    attempts = (re.fullmatch(r"(\d+)/", name) for name in store.names(f"{record.prefix}/attempts"))
    newest = f"{record.prefix}/attempts/{max((int(found[1]) for found in attempts if found), default=0)}"
    keys = [f"{newest}/{name}" for name in store.names(newest) if re.fullmatch(r"worker-\d+\.json", name)]
    over = ends(store, record, keys)
    if any(end["exit_code"] and not retryable(end["exit_code"]) for end in over):
        return "Failed"
    # Without a result.json the function published nothing, and yet all of it was done.
    return "Succeeded" if any(end["worker"] == end["exit_code"] == 0 for end in over) else "Absent"
