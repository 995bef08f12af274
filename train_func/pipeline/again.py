"""Whether a train step that is tried again may start its job again, after that has ended without a result."""

import json
from datetime import UTC, datetime

from train_func.client.job import Job
from train_func.client.stored_run import all_ends, state_in_store, submitted
from train_func.errors import Cause, InvalidInput, JobFailed
from train_func.fields import brief
from train_func.records import RunRecord
from train_func.storage import Store, find

# Ends that another try without a change would only repeat; what befell the workers or the cluster is tried again.
FINAL: tuple[Cause, ...] = ("input", "source", "data", "model", "code", "memory", "deadline")
NEVER = datetime.min.replace(tzinfo=UTC)


def check_goes_on(job: Job, store: Store, began: str) -> None:
    """Raises JobFailed where the job was cancelled, or has failed for good, since the pipeline run began.

    ``began``: ISO; empty: nothing is raised. Raises InvalidInput where it is no time.
    """
    if not began or _last_change(store, job.record) < _moment(began):
        return
    failure: JobFailed | None = None
    if state_in_store(store, job.record) == "Cancelled":
        failure = JobFailed(f"{job.name} was cancelled", cause="cancelled")
    elif job.state == "Failed":
        try:
            job.result()
        except JobFailed as error:
            failure = error if error.cause in FINAL else None
    if failure:
        raise JobFailed(
            f"{failure}\n  not tried again in this run of the pipeline, which began at {began}: run the pipeline "
            "again, and it goes on from the newest checkpoint",
            cause=failure.cause,
        ) from failure


def _last_change(store: Store, record: RunRecord) -> datetime:
    """When the job was submitted, cancelled or ended, whichever was last."""
    times = [submitted(store, record), *(end.ended for end in all_ends(store, record))]
    if cancelled := find(store, record.keys.cancelled):
        times.append(json.loads(cancelled.data)["time"])
    return max((datetime.fromisoformat(time) for time in times if time), default=NEVER)


def _moment(began: str) -> datetime:
    try:
        found = datetime.fromisoformat(began)
    except ValueError:
        found = NEVER.replace(tzinfo=None)
    if found.tzinfo is None:
        raise InvalidInput(f"began={brief(began)}: a time in ISO format with its zone is expected, as prepare gives it")
    return found
