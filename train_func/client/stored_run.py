"""What the store holds of a run: how its workers ended, the state of a job that is gone, the history of metrics."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Protocol

from train_func.client.status import JobStatus
from train_func.errors import StorageFailed
from train_func.exits import retryable
from train_func.layout import RunKeys
from train_func.metrics import Row, from_csv
from train_func.records import EndRecord, Lease, RunRecord
from train_func.result import Result
from train_func.storage import Readable, Store, find

FOLLOWERS = ("peer", "preemption")  # causes that another worker's failure brings about
FINISHED = ("Succeeded", "Failed", "Cancelled", "Interrupted")
NO_MODEL = {  # by state of a run that has published none: what to do
    **dict.fromkeys(("Created", "Running", "Restarting"), "wait() until it has finished"),
    "Suspended": "it continues when its queue, or the user who suspended it, resumes it",
    **dict.fromkeys(("Cancelled", "Interrupted", "Absent"), "submit it again: it goes on from its newest checkpoint"),
    "Failed": "result() tells why",
    "Succeeded": "its function called no session.publish(...) and left no files in the folder TRAIN_FUNC_OUTPUT",
}


class OfRun(Protocol):
    """A generation of a run: its record, or what stands for one that cannot be read."""

    @property
    def keys(self) -> RunKeys:
        """Where in the store it keeps everything."""


def submitted(store: Readable, record: OfRun) -> str:
    """Time of the newest submission, ISO; empty where the store has no record of the run."""
    found = find(store, record.keys.run)
    return str(json.loads(found.data).get("submitted", "")) if found else ""


def all_ends(store: Readable, record: OfRun) -> list[EndRecord]:
    """Every end record of the newest submission, oldest attempt first."""
    return ends(store, record, (entry.key for entry in store.list(f"{record.keys.attempts}/")))


def ends(store: Readable, record: OfRun, keys: Iterable[str]) -> list[EndRecord]:
    """The end records among these keys that belong to the newest submission, oldest attempt first.

    Raises StorageFailed (reason "damaged") where another version of this package wrote one.
    """
    newest = submitted(store, record)
    named = [key for key in keys if (file := record.keys.attempt_file(key)) and file.is_end]
    found = [EndRecord.from_json(store.get(key).data, f"{store.address}/{key}") for key in named]
    own = [end for end in found if not newest or end.submitted in ("", newest)]
    return sorted(own, key=lambda end: (end.attempt, end.ended))


def state_of(status: JobStatus, *, published: Callable[[], bool]) -> str:
    """One word for the state of a job: its newest true condition.

    Args:
        published: whether the store holds the final manifest; a job that was cancelled, or that has lost its
            controller, has then succeeded.
    """
    if status.condition("Succeeded"):
        return "Succeeded"
    if failed := status.condition("Failed"):
        if failed.reason != "Cancelled":
            return "Failed"
        return "Succeeded" if published() else "Cancelled"
    if status.interrupted:
        return "Succeeded" if published() else "Interrupted"
    return next((state for state in ("Suspended", "Restarting", "Running") if status.condition(state)), "Created")


def published_result(store: Readable, record: RunRecord) -> Result | None:
    """What the run has published; None when that is nothing."""
    found = find(store, record.keys.result)
    return Result.read(found.data, f"{record.keys.result} in {store.address}") if found else None


def newest_checkpoint(store: Readable, record: RunRecord) -> str:
    """Behind which step the run goes on, in words; empty where it has no checkpoint.

    Workers verify the checkpoint, and take the one before where it is damaged.
    """
    entries = store.list(f"{record.keys.checkpoints}/")
    ids = filter(None, (record.keys.checkpoint_id(entry.key) for entry in entries))
    newest = max((checkpoint for checkpoint in ids if checkpoint.step), default=None)
    if newest is None:
        return ""
    return f"behind step {newest.step}{f' of its training {newest.training + 1}' if newest.training else ''}"


def goes_on_in(store: Readable, record: RunRecord) -> str:
    """The same; where the run has none, of the run with whose checkpoints it is to go on.

    Where it has a result, there is nothing left to train.
    """
    if store.list(record.keys.result):
        return "with the publication of what is trained"
    if (own := newest_checkpoint(store, record)) or not record.resumes:
        return own
    other = replace(record, name=record.resumes, generation=record.resumes_generation)
    found = newest_checkpoint(store, other)
    return found and f"{found} of {other.name}"


def refused_checkpoints(ends: Sequence[EndRecord]) -> str:
    """The run of whose checkpoints none could be gone on from, as the newest of these ends tells; mostly empty."""
    errors = (error for end in reversed(ends) for _, error in end.errors)
    return next((error.checkpoints_of for error in errors if error.checkpoints_of), "")


def own_failures(ends: Sequence[EndRecord]) -> list[EndRecord]:
    """Failed ends of the newest attempt in which a worker failed by itself, or else of the newest that failed.

    That which the attempt's end began with comes first, if it is there.
    """
    failed = [end for end in ends if end.exit_code != 0]
    failed = [end for end in failed if end.cause not in FOLLOWERS] or failed
    newest = max((end.attempt for end in failed), default=0)
    return sorted((end for end in failed if end.attempt == newest), key=lambda end: end.follows is not None)


def cause_of_failure(store: Readable, record: OfRun) -> str:
    """In one word, as the workers of the newest attempt have recorded it; empty where none has."""
    own = own_failures(_newest_ends(store, record))
    return (own[0].cause or "") if own else ""


def mark_cancelled(store: Store, record: OfRun) -> None:
    """Records that the job was cancelled, for when the job itself is gone."""
    store.put(record.keys.cancelled, json.dumps({"time": datetime.now(UTC).isoformat()}).encode())


def state_in_store(store: Readable, record: OfRun) -> str:
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


def _newest_ends(store: Readable, record: OfRun) -> list[EndRecord]:
    """The ends in the newest attempt whose group has formed, and those in later attempts whose group has not.

    Each attempt is listed by itself: a listing of all would grow with what else they hold.
    """
    numbers = attempt_numbers(store, record)
    formed = next((number for number in reversed(numbers) if _has_formed(store, record.keys.attempt(number).lease)), 0)
    folders = [record.keys.attempt(number).prefix for number in numbers if number >= formed]
    keys = [f"{folder}/{name}" for folder in folders for name in store.names(folder)]
    return ends(store, record, keys)


def attempt_numbers(store: Readable, record: OfRun) -> list[int]:
    """The numbers of the attempts in the store, in ascending order."""
    names = (name.removesuffix("/") for name in store.names(record.keys.attempts))
    return sorted(int(name) for name in names if name.isdecimal())


def workers_of(store: Readable, record: RunRecord) -> list[int]:
    """The numbers of the workers that the run has now, or that an earlier attempt has left a record or log of."""
    files = (record.keys.attempt_file(entry.key) for entry in store.list(f"{record.keys.attempts}/"))
    found = {file.worker for file in files if file and file.worker is not None}
    return sorted(found.union(range(record.run.workers)))


def _has_formed(store: Readable, lease: str) -> bool:
    found = find(store, lease)
    return found is not None and Lease.from_json(found.data, f"{store.address}/{lease}").formed


def history(store: Readable, record: RunRecord) -> list[dict[str, Any]]:
    """The rows of ``Job.history``. Raises StorageFailed (reason "damaged") when a file cannot be read."""
    rows = {number: _rows(store, record, number) for number in attempt_numbers(store, record)}
    return [
        {**row.values, "step": row.step, "timestamp": row.timestamp, "attempt": number}
        for number, row in joined_history(rows)
    ]


def joined_history(rows: Mapping[int, Sequence[Row]]) -> list[tuple[int, Row]]:
    """The rows with their attempts, without steps that a later attempt repeated; sorted by step and time.

    An attempt that was stopped in an evaluation is followed by one that begins with that evaluation, and has no other
    row of that step: the loss of the step stays.
    """
    kept: list[tuple[int, Row]] = []
    for number in sorted(rows):
        if rows[number]:
            steps = [row.step for row in rows[number]]
            first, last = min(steps), max(steps)
            metrics = {name for row in rows[number] if row.step == first for name in row.values}
            kept = [
                (earlier, row)
                for earlier, row in kept
                if not first <= row.step <= last or (row.step == first and not row.values.keys() <= metrics)
            ]
        kept += [(number, row) for row in rows[number]]
    return sorted(kept, key=lambda found: (found[1].step, found[1].timestamp))


def _rows(store: Readable, record: RunRecord, number: int) -> list[Row]:
    keys = record.keys.attempt(number)
    there = set(store.names(keys.metrics))
    found: list[Row] = []
    part = 1
    while (key := keys.metrics_csv(part)).removeprefix(f"{keys.metrics}/") in there:
        try:
            found += from_csv(store.get(key).data)
        except (ValueError, TypeError) as error:
            raise StorageFailed(f"{store.address}/{key} is damaged: {error}", reason="damaged") from None
        part += 1
    return found
