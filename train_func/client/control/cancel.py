"""Cancels or deletes the job of a run, or gives up one that cannot be asked from here and shows no sign of life."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from train_func.client.backend import Backend, BoundJob
from train_func.client.elsewhere import SILENT_SECONDS, Elsewhere, whereabouts
from train_func.client.status import OPEN, JobStatus
from train_func.client.stored_attempts import state_in_store
from train_func.client.stored_run import ENDED, how_to, mark_cancelled, newest_checkpoint, status_here
from train_func.errors import JobNotFound, StorageFailed
from train_func.storage import Store
from train_func.wire.records import RunRecord

OVER = "it had ended before; nothing was changed"


def cancel(record: RunRecord, job: BoundJob, backend: Backend, store: Store, note: Callable[[str], None]) -> None:
    """Stops the workers; ``note`` says what has become of the job. Raises JobNotFound."""
    keys = record.keys
    status = status_here(job.status(), keys, store, backend)
    if status is None and (other := Elsewhere.of(keys, store, backend)):
        return give_up(record, other, store, note)
    if status is not None and status.is_over and not _train_on(status, job):
        return note(OVER)
    with ThreadPoolExecutor(1) as beside:  # a store that is away must not keep the workers going
        marked = beside.submit(mark_cancelled, store, keys) if status else None
        job.cancel()
    try:
        if marked:
            marked.result()
        else:  # it came to be there since it was asked for
            mark_cancelled(store, keys)
        if store.list(keys.result):
            note("cancelled; its model was trained by then and is published; submit with fresh=True to train again")
        else:
            note(f"cancelled; {_goes_on(record, store)}")
    except StorageFailed as failure:
        note(f"it is stopped; the store could not be told, so that it may be called Absent: {failure}")
    return None


def delete(record: RunRecord, job: BoundJob, backend: Backend, store: Store, note: Callable[[str], None]) -> None:
    """Removes the job from its backend; ``note`` says what stays."""
    is_there = job.status() is not None
    job.delete()
    gone = whereabouts(record.keys, store, backend) or "there is no job any more"
    remove = how_to("remove", record.name, backend, store.address)
    note(
        f"{'the job is deleted, with its pods and their files' if is_there else gone}; the run stays in "
        f"{store.address}/{record.name}/, with its logs and what it has published; `{remove}` removes the run too"
    )


def give_up(record: RunRecord, other: Elsewhere, store: Store, note: Callable[[str], None]) -> None:
    """Marks a job that cannot be asked as cancelled, unless it lives; then it raises JobNotFound."""
    if other.job is not None:
        raise JobNotFound(other.whereabouts)
    note(f"looking up to {SILENT_SECONDS:.0f} s for a sign of life of its job")
    if other.lives():
        raise JobNotFound(f"{other}. It lives, and is stopped where it runs: `{other.submission.how_to('cancel')}`")
    if state_in_store(store, record.keys) in ENDED:
        return note(OVER)
    mark_cancelled(store, record.keys)
    return note(f"its job on {other.submission.place} is given up; {_goes_on(record, store)}")


def _train_on(status: JobStatus, job: BoundJob) -> bool:
    """Returns whether workers go on although the job has failed: an operator leaves their pods as they are then."""
    has_failed = status.condition("Failed") is not None
    return has_failed and any(pod.phase in OPEN and not pod.deleted for pod in job.look(with_logs=False).pods)


def _goes_on(record: RunRecord, store: Store) -> str:
    checkpoint = newest_checkpoint(store, record.keys)
    return f"submitted again, it goes on {checkpoint or 'from its beginning, without a checkpoint'}"
