"""The attempts of a run as its store holds them: their histories, how their workers ended, what became of the run."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import count

from train_func.client.backend import Backend
from train_func.client.status import JobStatus
from train_func.client.stored_run import is_cancelled, state_of, status_here, submission_time
from train_func.errors import StorageFailed
from train_func.storage import Readable, find
from train_func.wire.exits import retryable
from train_func.wire.layout import END_MARK, RunKeys
from train_func.wire.metrics import Row, from_csv
from train_func.wire.records import EndRecord, RunRecord, digest_of

BLAMELESS = ("peer", "preemption")  # causes that blame no worker: its peers were lost, or it was asked to leave


def attempt_numbers(store: Readable, keys: RunKeys) -> list[int]:
    """The numbers of the attempts in the store, in ascending order."""
    names = (name.removesuffix("/") for name in store.names(keys.attempts))
    return sorted(int(name) for name in names if name.isdecimal())


def attempt_rows(store: Readable, keys: RunKeys, number: int) -> list[Row]:
    """The history of one attempt. Raises StorageFailed (reason "damaged") when a file cannot be read."""
    rows: list[Row] = []
    for part in count(1):
        key = keys.attempt(number).metrics_csv(part)
        if (stored := find(store, key)) is None:
            return rows
        try:
            rows += from_csv(stored.data)
        except (ValueError, TypeError) as error:
            raise StorageFailed(f"{store.address}/{key} is damaged: {error}", reason="damaged") from None
    return rows


def workers_of(store: Readable, record: RunRecord) -> list[int]:
    """The numbers of the workers that the run has now, or that an earlier attempt has left a record or log of."""
    files = (record.keys.attempt_file(entry.key) for entry in store.list(f"{record.keys.attempts}/"))
    numbers = {file.worker for file in files if file and file.worker is not None}
    return sorted(numbers.union(range(record.run.workers)))


def all_ends(
    store: Readable, keys: RunKeys, damaged: list[str] | None = None, *, of_newest: bool = True
) -> list[EndRecord]:
    """Every end record of the newest submission, or of all, oldest attempt first.

    ``damaged`` takes why a record cannot be read, which hides only itself; without it, that raises StorageFailed.
    """
    newest = submission_time(store, keys) if of_newest else ""
    records = []
    for entry in store.list(f"{keys.attempts}/"):
        file = keys.attempt_file(entry.key)
        if not file or not file.is_end:
            continue
        try:
            records.append(EndRecord.from_json(store.get(entry.key).data, f"{store.address}/{entry.key}"))
        except StorageFailed as failure:
            if damaged is None or failure.reason != "damaged":
                raise
            damaged.append(str(failure))
    ends = [end for end in records if newest in ("", end.submitted)]
    return sorted(ends, key=lambda end: (end.attempt, end.ended))


def _marked_ends(store: Readable, keys: RunKeys) -> Iterator[EndRecord]:
    """Yields what counts of the ends of the newest submission, oldest attempt first, by the names of objects alone."""
    newest = submission_time(store, keys)
    digest = digest_of(newest)
    for number in attempt_numbers(store, keys):
        for name in store.names(keys.attempt(number).prefix):
            end = EndRecord.of_facts(number, name.removeprefix(END_MARK)) if name.startswith(END_MARK) else None
            if end and (not newest or end.submitted == digest):
                yield end


def refused_checkpoints(ends: Sequence[EndRecord]) -> str:
    """Returns the run none of whose checkpoints could be resumed, as the newest of these ends reports; mostly empty."""
    errors = (error for end in reversed(ends) for _, error in end.errors)
    return next((error.checkpoints_of for error in errors if error.checkpoints_of), "")


def own_failures(ends: Iterable[EndRecord]) -> list[EndRecord]:
    """Failed ends of the newest attempt in which a worker failed by itself, or else of the newest that failed.

    The one with which the attempt began to end comes first, if it is there.
    """
    failed = [end for end in ends if end.exit_code != 0]
    failed = [end for end in failed if end.cause not in BLAMELESS] or failed
    newest = max((end.attempt for end in failed), default=0)
    last = [end for end in failed if end.attempt == newest]
    return sorted(last, key=lambda end: end.follows is not None or not end.root_cause)


def cause_of_failure(store: Readable, keys: RunKeys) -> str:
    """Returns the cause in one word, as the workers have recorded it; empty where none has."""
    return next((end.cause or "" for end in own_failures(_marked_ends(store, keys))), "")


def state_in_store(store: Readable, keys: RunKeys) -> str:
    """Returns what became of a job that is gone from its backend: cancelled, deleted, or past its time to live.

    A function may fail after it has published, and end well without having published anything. The newest attempt that
    worker 0 took part in, or in which any worker ended well, tells; of later ones only a permanent failure counts.
    """
    is_published = bool(store.list(keys.result))
    if is_cancelled(store, keys):
        return "Succeeded" if is_published else "Cancelled"
    ends = list(_marked_ends(store, keys))
    last = max((end.attempt for end in ends if end.worker == 0 or end.exit_code == 0), default=0)
    failed = {end.attempt for end in ends if end.exit_code != 0 and not retryable(end.exit_code)}
    if last not in failed and any((end.attempt, end.exit_code) == (last, 0) for end in ends):
        return "Succeeded"
    if max(failed, default=-1) >= last:
        return "Failed"
    return "Succeeded" if is_published else "Absent"


def job_state(status: JobStatus | None, keys: RunKeys, store: Readable, here: Backend) -> str:
    """Returns the state of a job of this status in one word; of one that is gone what the store holds of its run."""
    status = status_here(status, keys, store, here)
    if status is None:
        return state_in_store(store, keys)
    return state_of(status, published=lambda: bool(store.list(keys.result)))
