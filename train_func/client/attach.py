"""The handle on a run that was submitted before: by its name, or by submitting it again."""

import time

from train_func.client import registry
from train_func.client.backend import Backend
from train_func.client.elsewhere import refuse_elsewhere
from train_func.client.identity import differing, newest_generation, stored
from train_func.client.in_place import in_place
from train_func.client.job import Job
from train_func.client.stored_run import FINISHED
from train_func.client.submission import SubmissionRecord
from train_func.client.unknown_run import unknown_run, whole_name
from train_func.errors import JobNotFound
from train_func.records import RunRecord
from train_func.storage import Store, open_store
from train_func.text import shown

OTHER_SECONDS = 120.0  # longest wait for the job of another client that submits the same run
LOOK_SECONDS = 0.2


def attach(name: str, *, on: Backend | None = None) -> Job:
    """The handle on a run that was submitted before, from any kernel.

    Args:
        name: of the run, as ``job.name`` and ``runs()`` give it; a beginning that no other run has is enough. Or the
            name under which a model is in place: the run that has made it.
        on: the backend whose store has the run, ``Local()`` by default.

    Raises:
        InvalidInput: several runs are named so.
        JobNotFound: the store of that backend holds no such run; the most similar names are listed.
    """
    backend = registry.given(on)
    store = open_store(backend.store_address())
    if isinstance(name, str) and (held := in_place(store, name)):
        return Job(stored(store, held.run, held.generation), backend, store, held)
    name = whole_name(store, name, "attach")
    generation = newest_generation(store, name)
    if generation == 0:
        raise unknown_run(store, name, "attach")
    return Job(stored(store, name, generation), backend, store)


def is_leaving(job: Job, backend: Backend) -> bool:
    """Whether it was deleted and only waits for the end of its pods: its state is still that of before."""
    status = backend.job(job.record.job_name).status()
    return status is not None and status.deleting


def attached(asked: RunRecord, backend: Backend, store: Store, state: str, by: str = "") -> Job:
    """The job that was submitted before; what it was not submitted with, of run and backend, is told of."""
    job = Job(stored(store, asked.name, asked.generation), backend, store)
    folder = f"{job.record.store}/{job.record.keys.prefix}"
    done = f"it was already done, and its run is kept in {folder}" if state == "Succeeded" else f"it is {state}"
    print(f"{job.name}: {by or done}; attached to it (fresh=True trains again)")
    if other := differing(job.record, asked):
        was, now = (", ".join(f"{name}={values[place]}" for name, values in other.items()) for place in (0, 1))
        print(shown(f"note: submitted with {was}; you asked for {now}"))
    kept = SubmissionRecord.read(store, job.record.keys) if state != "Succeeded" else None
    if kept and (options := kept.differing(backend.submission(job.record, ()).options)):
        print(
            f"note: it was submitted with {', '.join(options)}, and stays so; for the options given now stop it first, "
            f"then submit again: {job.attach_expression}.cancel()"
        )
    return job


def of_other(asked: RunRecord, backend: Backend, store: Store) -> Job:
    """The handle on the job of the client that was quicker, as soon as there is one.

    Raises:
        InvalidInput: it is in another place.
        JobNotFound: there is none after a while.
    """
    job = Job(asked, backend, store)
    print(f"{job.name}: another client submits the same run; waiting up to {OTHER_SECONDS:.0f} s for its job")
    end = time.monotonic() + OTHER_SECONDS
    while time.monotonic() < end and (is_leaving(job, backend) or job.state in ("Absent", *FINISHED[1:])):
        refuse_elsewhere(asked, backend, store)
        time.sleep(LOOK_SECONDS)
    state = job.state
    if state == "Absent":
        raise JobNotFound(f"{job.name}: the other client that submitted the run started no job; submit it again")
    return attached(asked, backend, store, state, by=f"already submitted by another client and {state}")
