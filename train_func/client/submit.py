"""Submits a function as a run, or attaches to one that was submitted before."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from train_func import kept_tables
from train_func.client import registry
from train_func.client.backend import Backend, RunsAlready
from train_func.client.claim import Claim
from train_func.client.identity import (
    addresses_of,
    check_ranks,
    differing,
    newest_generation,
    placed,
    record_of,
    stored,
)
from train_func.client.job import Job
from train_func.client.packages import carry
from train_func.client.packages.wheels import Resolved
from train_func.client.preflight import Check, Facts
from train_func.client.source import Source, pack
from train_func.client.stored_run import FINISHED, newest_checkpoint
from train_func.client.submission import SubmissionRecord
from train_func.client.unfinished import unfinished_note
from train_func.client.unknown_run import alike, unknown_run, whole_name
from train_func.counted import counted
from train_func.errors import InvalidInput, JobNotFound, StorageFailed, TrainFuncError
from train_func.layout import CELLS, INPUTS, PROBES, RUN, SOURCE
from train_func.records import RunRecord
from train_func.run import Run
from train_func.storage import Store, open_store
from train_func.storage.retry import begin
from train_func.terminal import shown

LARGEST_CONFIG_MAP = 900_000  # bytes; Kubernetes allows 1 MiB with everything around it
OTHER_SECONDS = 120.0  # longest wait for the job of another client that submits the same run
LOOK_SECONDS = 0.2


def submit(
    function: Callable[..., object], run: Run | None = None, *, on: Backend | None = None, fresh: bool = False
) -> Job:
    """Starts ``function`` as a job, or attaches to that of the same run.

    Running or succeeded: attaches. Failed, cancelled or interrupted: a new job of the same run.

    Args:
        function: takes the dict of parameters, each of them by its name, or nothing.
        run: what is asked for; by default one worker, without parameters.
        on: the backend, ``Local()`` by default.
        fresh: train again from the beginning, as the next generation of the run.

    Raises:
        SourceRefused: the function cannot travel; every reason with its cell and line.
        InvalidInput: data, model or options cannot work; every fault at once.
        StorageFailed: the store is away, denies, or is not there.
    """
    backend = registry.given(on)
    asked: object = Run() if run is None else run
    if not isinstance(asked, Run):
        raise InvalidInput(f"submit was given {type(run).__name__} as the run; a Run(task=...) is expected")
    run = backend.adapted(asked)
    modules, values = (run.task.modules, None) if run.task else ((), run.parameters)
    inventory = begin(backend.inventory)  # a registry may be silent for seconds, which no fault of the source waits for
    source = pack(function, modules, values, is_there=carry.presence(backend.packages, inventory.result))
    packages = carry.check(backend.packages, inventory.result(), source.imports)
    store, facts = _checked(backend, run)
    record = record_of(run, source, facts, store, fresh=fresh, packages=packages)
    claim = Claim(store, record.keys)
    job = Job(record, backend, store)
    earlier = Job(replace(record, generation=record.generation - 1), backend, store) if record.generation > 1 else None
    if fresh and earlier:
        _refuse_beside(earlier, backend)
    state = "Deleted" if _leaving(job, backend) else job.state
    if claim.is_first and state in FINISHED:
        state = "Absent"  # its run was removed from the store, or is a new generation: nothing is left to attach to
    if not fresh and state not in ("Absent", "Deleted", *FINISHED[1:]):
        return _attached(record, backend, store, state)
    _refuse_elsewhere(earlier.record if fresh and earlier else record, backend, store)
    check_ranks(store, record, backend.submission(record, ()).ranks_per_worker)
    prepared = backend.prepare(record, facts.inputs, facts.num_model_bytes, store)
    if not fresh and state != "Absent":
        print(f"{job.name}: already submitted, and it is {state}; it is tried again")
    carry.upload(packages.wheels, store)
    resembles = claim.is_first and not earlier and unfinished_note(record, backend, store)
    for note in filter(None, (*facts.notes, _restart_note(source, record, store, claim), resembles)):
        print(shown(f"note: {note}"))
    goes_on = newest_checkpoint(store, record)
    carry_again = partial(_carry_again, backend, store, packages, facts, is_moved=prepared != record.run)
    # A branch of the Hub may move: what was checked, and named the run, is what every attempt loads.
    record = replace(record, run=prepared.with_inputs(facts.commits))
    if not _start(record, source, backend, store, claim, carry_again):
        return _of_other(record, backend, store)
    print(shown(f"{record.name}: submitted, {_summary(record, facts, goes_on)}"))
    if run.max_attempts != asked.max_attempts:
        print(f"note: max_attempts={run.max_attempts}, not {asked.max_attempts}: a job there has no more attempts")
    if fresh and earlier:
        backend.job(earlier.record.job_name).delete()  # it has finished, and no handle leads to it any more
    return Job(record, backend, store)


def _summary(record: RunRecord, facts: Facts, goes_on: str) -> str:
    generation = f"generation {record.generation}" if record.generation > 1 else ""
    found = (generation, counted(record.run.workers, "worker"), facts.summary, goes_on and f"goes on {goes_on}")
    return ", ".join(filter(None, found))


def _restart_note(source: Source, record: RunRecord, store: Store, claim: Claim) -> str:
    """What becomes of a function that loses a worker; nothing when it saves its state, or has no second attempt.

    It is said once: not of a run that was submitted before, or beside another one of that readable name.
    """
    if source.saves_state or record.run.max_attempts == 1 or record.generation > 1 or not claim.is_first:
        return ""
    if alike(store, record.name):
        return ""
    what = f"{source.function} saves no state: when a worker is lost, it starts from its beginning"
    return f"{what}; session.checkpoint(...) or the Trainer of train_func.worker saves it (docs/functions.md)"


def _attached(asked: RunRecord, backend: Backend, store: Store, state: str, by: str = "") -> Job:
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


def _leaving(job: Job, backend: Backend) -> bool:
    """Whether it was deleted and only waits for the end of its pods: its state is still that of before."""
    status = backend.job(job.record.job_name).status()
    return status is not None and status.deleting


def _refuse_beside(earlier: Job, backend: Backend) -> None:
    """A handle finds one generation by name: of two that train at once the older one could not be stopped."""
    if (state := earlier.state) not in (*FINISHED, "Absent") and not _leaving(earlier, backend):
        raise InvalidInput(
            f"fresh=True: generation {earlier.record.generation} of {earlier.name} is {state}; wait for it, or stop it "
            f"first: {earlier.attach_expression}.cancel()"
        )


def _refuse_elsewhere(record: RunRecord, backend: Backend, store: Store) -> None:
    """Of two jobs of one run, on two backends, only one could publish, and each would replace the other's records."""
    kept = SubmissionRecord.read(store, record.keys)
    if kept is None or kept.is_at(backend):
        return
    try:
        status = kept.job(record.job_name).status()
    except (TrainFuncError, KeyError, TypeError) as error:  # another machine's backend may have other options
        print(
            shown(
                f"note: {record.name} was submitted to {kept.place} before; whether it runs there is unknown: {error}"
            )
        )
        return
    if status is not None and not (status.finished or status.interrupted or status.deleting):
        back = f"attach({record.name!r}, {kept.expression})"
        raise InvalidInput(
            f"{record.name} runs in {kept.place}, where it was submitted before: {back} is its handle. To run it here, "
            f"stop it there first: {back}.cancel()"
        )


def _checked(backend: Backend, run: Run) -> tuple[Store, Facts]:
    """The store, and what is known of data and model, which takes a process of its own seconds to find out."""
    fault = None
    try:
        address = backend.store_address()
    except InvalidInput as found:
        fault = found
    if fault:
        backend.check(run)  # tells this together with everything else
        raise fault
    with Check(placed(run), address) as check:
        backend.check(run)
        store = open_store(address)
        store.probe(PROBES)
        return store, check.facts()


def attach(name: str, *, on: Backend | None = None) -> Job:
    """The handle on a run that was submitted before, from any kernel.

    Args:
        name: of the run, as ``job.name`` and ``runs()`` give it; a beginning that no other run has is enough.
        on: the backend whose store has the run, ``Local()`` by default.

    Raises:
        InvalidInput: several runs are named so.
        JobNotFound: the store of that backend holds no such run; the most similar names are listed.
    """
    backend = registry.given(on)
    store = open_store(backend.store_address())
    name = whole_name(store, name, "attach")
    generation = newest_generation(store, name)
    if generation == 0:
        raise unknown_run(store, name, "attach")
    return Job(stored(store, name, generation), backend, store)


def _carry_again(
    backend: Backend, store: Store, packages: Resolved, facts: Facts, record: RunRecord, *, is_moved: bool
) -> None:
    """Makes sure of the run's files in the store: until its record named them, another client may have removed them."""
    carry.upload(packages.wheels, store)
    there = ((len(store.list(f"{INPUTS}/{found.sha256}/")), len(found.files)) for found in facts.inputs.values())
    if is_moved and any(num < expected for num, expected in there):
        backend.prepare(record, facts.inputs, facts.num_model_bytes, store)


def _start(
    record: RunRecord,
    source: Source,
    backend: Backend,
    store: Store,
    claim: Claim,
    carry_again: Callable[[RunRecord], None],
) -> bool:
    """Whether the job was started; False when another client, which submits the same run, is about to."""
    record = replace(record, submitted=datetime.now(UTC).isoformat(timespec="milliseconds"))
    files = {RUN: _dump(record.to_dict()), CELLS: _dump(source.cells), SOURCE: source.text.encode()}
    store.put(record.keys.source, files[SOURCE])  # the same bytes from every client that submits the run
    if sum(map(len, files.values())) > LARGEST_CONFIG_MAP:
        del files[SOURCE]
    keys, submission = record.keys, backend.submission(record, list(files))
    records = {
        keys.run: files[RUN],
        keys.submission: SubmissionRecord.of(backend, submission).to_json(),
        keys.manifest: _dump(submission.manifest),
        keys.cells: files[CELLS],
    }
    if not claim.write(records):
        return False
    kept = kept_tables.keep(record.store, record.name, addresses_of(record.run).values())
    try:
        carry_again(record)
        backend.submit(submission, files)
    except RunsAlready as refused:
        if not refused.has_own_files:
            claim.undo()
        return False
    except TrainFuncError as failure:
        if failure.cause != "cluster":  # then the job may have come, with these records, although no answer did
            claim.undo()
            for note in kept:
                note.unlink(missing_ok=True)
        raise
    except KeyboardInterrupt:
        back = Job(record, backend, store).attach_expression
        print(f"{record.name}: interrupted while it was submitted; if it is there it goes on: {back}.cancel() stops it")
        raise
    try:
        claim.confirm()
    except StorageFailed as failure:
        print(shown(f"note: {record.name} is submitted; whether its records are its own is unknown: {failure}"))
    return True


def _of_other(asked: RunRecord, backend: Backend, store: Store) -> Job:
    """The handle on the job of the client that was quicker, as soon as there is one.

    Raises:
        JobNotFound: there is none after a while.
    """
    job = Job(asked, backend, store)
    print(f"{job.name}: another client submits the same run; waiting up to {OTHER_SECONDS:.0f} s for its job")
    end = time.monotonic() + OTHER_SECONDS
    while time.monotonic() < end and (_leaving(job, backend) or job.state in ("Absent", *FINISHED[1:])):
        time.sleep(LOOK_SECONDS)
    state = job.state
    if state == "Absent":
        _refuse_elsewhere(asked, backend, store)
        raise JobNotFound(f"{job.name}: the other client that submitted the run started no job; submit it again")
    return _attached(asked, backend, store, state, by=f"already submitted by another client and {state}")


def _dump(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, indent=1, ensure_ascii=False).encode()
