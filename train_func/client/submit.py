"""Submits a function as a run, or attaches to one that was submitted before."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from train_func import tables
from train_func.client import registry
from train_func.client.attach import attached, is_leaving, of_other
from train_func.client.backend import Backend, RunsAlready
from train_func.client.claim import Claim
from train_func.client.elsewhere import refuse_elsewhere
from train_func.client.identity import (
    addresses_of,
    check_ranks,
    placed,
    record_of,
)
from train_func.client.job import Job
from train_func.client.packages import carry
from train_func.client.packages.wheels import Resolved
from train_func.client.preflight import Check, Facts
from train_func.client.source import Source, pack
from train_func.client.stored_run import FINISHED, goes_on_in
from train_func.client.submission import SubmissionRecord
from train_func.client.unfinished import resumed
from train_func.client.variables import left_behind
from train_func.errors import InvalidInput, StorageFailed, TrainFuncError
from train_func.layout import CELLS, INPUTS, PROBES, RUN, SOURCE
from train_func.records import RunRecord
from train_func.run import Run
from train_func.storage import Store, open_store
from train_func.storage.retry import begin
from train_func.text import counted, shown

LARGEST_CONFIG_MAP = 900_000  # bytes; Kubernetes allows 1 MiB with everything around it


def submit(
    function: Callable[..., object] | Source,
    run: Run | None = None,
    *,
    on: Backend | None = None,
    fresh: bool = False,
    resume: str | None = None,
) -> Job:
    """Starts ``function`` as a job, or attaches to that of the same run.

    Running or succeeded: attaches. Failed, cancelled or interrupted: a new job of the same run.

    Args:
        function: takes the dict of parameters, each of them by its name, or nothing; or one that is packed already.
        run: what is asked for; by default one worker, without parameters.
        on: the backend, ``Local()`` by default.
        fresh: train again from the beginning, as the next generation of the run.
        resume: the name of a run that has ended, as of the function before it was fixed: the first training goes on
            from the newest checkpoint of that run, and later attempts from those of this one.

    Raises:
        SourceRefused: the function cannot travel; every reason with its cell and line.
        InvalidInput: data, model or options cannot work; every fault at once.
        StorageFailed: the store is away, denies, or is not there.
    """
    return started(function, run, registry.given(on), fresh=fresh, resume=resume)


def started(
    function: Callable[..., object] | Source,
    run: Run | None,
    backend: Backend,
    *,
    fresh: bool = False,
    resume: str | None = None,
    before_again: Callable[[Job, Store], None] | None = None,
) -> Job:
    """As ``submit``; ``before_again`` gets the job of a run that has ended without a result, and may refuse another."""
    asked = checked_run(run)
    run = backend.adapted(asked)
    source, packages = packed(function, run, backend)
    store, facts = checked(backend, run)
    record = record_of(run, source, facts, store, fresh=fresh, packages=packages)
    claim = Claim(store, record.keys)
    job = Job(record, backend, store)
    earlier = Job(replace(record, generation=record.generation - 1), backend, store) if record.generation > 1 else None
    if fresh and earlier:
        _refuse_beside(earlier, backend)
    state = "Deleted" if is_leaving(job, backend) else job.state
    if claim.is_first and state in FINISHED:
        state = "Absent"  # one that was removed from the store, or is a new generation, leaves nothing to attach to
    if not fresh and state not in ("Absent", "Deleted", *FINISHED[1:]):
        return attached(record, backend, store, state)
    if before_again and state != "Absent":
        before_again(job, store)
    record = resumed(record, resume, backend, store, is_known=not claim.is_first, fresh=fresh)
    refuse_elsewhere(earlier.record if fresh and earlier else record, backend, store)
    asks = backend.submission(record, ())
    check_ranks(store, record, asks.ranks_per_worker)
    prepared = backend.prepare(record, facts.inputs, facts.num_model_bytes, store)
    if not fresh and state != "Absent":
        print(f"{job.name}: already submitted, and it is {state}; it is tried again")
    carry.upload(packages.wheels, store)
    _tell(*facts.notes, left_behind(source.text, asks.manifest, asks.set_here))
    goes_on = goes_on_in(store, record)
    carry_again = partial(_carry_again, backend, store, packages, facts, is_moved=prepared != record.run)
    # A branch of the Hub may move: what was checked, and named the run, is what every attempt loads.
    record = replace(record, run=prepared.with_inputs(facts.commits))
    if not _start(record, source, backend, store, claim, carry_again):
        return of_other(record, backend, store)
    print(shown(f"{record.name}: submitted, {_summary(record, facts, goes_on)}"))
    if run.max_attempts != asked.max_attempts:
        _tell(
            f"max_attempts={run.max_attempts}, not {asked.max_attempts}: a failure ends a job there; a worker that is "
            "deleted or evicted is replaced, and the training goes on"
        )
    if fresh and earlier:
        backend.job(earlier.record.job_name).delete()  # it has finished, and no handle leads to it any more
    return Job(record, backend, store)


def packed(function: Callable[..., object] | Source, run: Run, backend: Backend) -> tuple[Source, Resolved]:
    """The function, and the packages that travel with it; raises SourceRefused and InvalidInput as ``submit`` does."""
    modules, values = (run.task.modules, None) if run.task else ((), run.parameters)
    inventory = begin(backend.inventory)  # a registry may be silent for seconds, which no fault of the source waits for
    is_there = carry.presence(backend.packages, inventory.result)
    source = function if isinstance(function, Source) else pack(function, modules, values, is_there=is_there)
    return source, carry.check(backend.packages, inventory.result(), source.imports)


def checked_run(run: object) -> Run:
    """What a caller has given as the run; by default one worker. Raises InvalidInput for all else."""
    if run is None:
        return Run()
    if isinstance(run, Run):
        return run
    raise InvalidInput(f"submit was given {type(run).__name__} as the run; a Run(task=...) is expected")


def _tell(*notes: str) -> None:
    for note in filter(None, notes):
        print(shown(f"note: {note}"))


def _summary(record: RunRecord, facts: Facts, goes_on: str) -> str:
    generation = f"generation {record.generation}" if record.generation > 1 else ""
    found = (generation, counted(record.run.workers, "worker"), facts.summary, goes_on and f"goes on {goes_on}")
    return ", ".join(filter(None, found))


def _refuse_beside(earlier: Job, backend: Backend) -> None:
    """A handle finds one generation by name: of two that train at once the older one could not be stopped."""
    if (state := earlier.state) not in (*FINISHED, "Absent") and not is_leaving(earlier, backend):
        raise InvalidInput(
            f"fresh=True: generation {earlier.record.generation} of {earlier.name} is {state}; wait for it, or stop it "
            f"first: {earlier.attach_expression}.cancel()"
        )


def checked(backend: Backend, run: Run) -> tuple[Store, Facts]:
    """The store, and what is known of data and model, which takes a process of its own seconds to find out.

    Raises what ``submit`` raises; nothing is created.
    """
    tables.save_again(addresses_of(run))
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
    try:
        kept = tables.keep(record.store, record.name, addresses_of(record.run).values())
    except OSError as failure:
        claim.undo()
        raise InvalidInput(
            f"the DataFrame of {record.name} cannot be kept in {tables.tables_folder()}: {failure}; see to room and "
            "rights there, or name another folder by TRAIN_FUNC_HOME"
        ) from None
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


def _dump(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, indent=1, ensure_ascii=False).encode()
