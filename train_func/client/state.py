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
    entries = {entry.key.removeprefix(f"{record.prefix}/") for entry in store.list(f"{record.prefix}/")}
    if "result.json" in entries:
        return "Succeeded"
    if CANCELLED in entries:
        return "Cancelled"
    attempts = {int(found[1]) for key in entries if (found := re.match(r"attempts/(\d+)/", key))}
    newest = f"attempts/{max(attempts, default=0)}"
    keys = [f"{record.prefix}/{key}" for key in entries if re.fullmatch(rf"{newest}/worker-\d+\.json", key)]
    over = ends(store, record, keys)
    if any(end["exit_code"] and not retryable(end["exit_code"]) for end in over):
        return "Failed"
    # Without a result.json the function published nothing, and yet all of it was done.
    return "Succeeded" if any(end["worker"] == end["exit_code"] == 0 for end in over) else "Absent"
