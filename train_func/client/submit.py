"""Submits a function as a run, or attaches to one that was submitted before."""

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import packages_distributions, version
from typing import TYPE_CHECKING, Any

from train_func.client.backend import Backend, backend_or_default, name_of_backend
from train_func.client.elsewhere import refuse_elsewhere
from train_func.client.job import Job
from train_func.client.preflight import Facts, check_inputs, input_addresses, pack_function, with_absolute_paths
from train_func.client.source import Source, notes
from train_func.client.stored_run import (
    ENDED,
    WITHOUT_RESULT,
    Submission,
    complete_model,
    goes_on_in,
    how_to,
    newest_checkpoint,
    newest_generation,
    start_job,
    stored_record,
    whole_name,
)
from train_func.errors import InvalidInput, JobNotFound, TrainFuncError
from train_func.fields import named_arguments
from train_func.run import Run, name_of, ranks_fault, recorded_only, replace_inputs
from train_func.storage import Store
from train_func.text import counted, listed, shown
from train_func.wire import events
from train_func.wire.layout import RunKeys, newest_number
from train_func.wire.records import RunRecord

if TYPE_CHECKING:
    from train_func.client.packages.requirements import Resolution

OTHER_SECONDS = 60.0  # longest wait for the job of another client that submits the same run
LOOK_SECONDS = 0.5
OF_A_WORKER = re.compile(  # variables that workers have, or that environment= refuses
    r"(TRAIN_FUNC|AWS|CUDA|NVIDIA|OMP|LC)_\w+|PATH|PYTHONPATH|LD_LIBRARY_PATH|HOME|LANG|TZ|HOSTNAME|TMPDIR"
    r"|HF_(HOME|ENDPOINT|HUB_OFFLINE|TOKEN)|(LOCAL_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|(?i:\w+_proxy)"
)
OF_PLAN = ("epochs", "batch_size", "seed")  # fields of Run: a place in one plan is none in another


@named_arguments
def submit(
    function: Callable[..., object] | Source,
    run: Run | None = None,
    *,
    on: Backend | None = None,
    fresh: bool = False,
    resume: str | None = None,
) -> Job:
    """Starts ``function`` as a job, or attaches to the job of the same run.

    If that job runs or has succeeded, ``submit`` attaches to it. If it failed, was cancelled or was interrupted, a new
    job of the same run starts, and goes on from the newest checkpoint.

    Args:
        function: what the workers call: with nothing, with each parameter by its name, or with one dict that it names
            ``parameters``.
        run: what you ask for; by default one worker, without parameters.
        on: the backend, ``Local()`` by default.
        fresh: train again from the beginning, as the next generation of the run.
        resume: the name of a run that has ended, such as the one before a line was fixed. Until this run has a
            checkpoint of its own, this job goes on from the newest one of that run, whose plan, model, kind of
            optimizer and kind of schedule have to be the same; a later job does so if ``resume`` is given again.

    Raises:
        SourceRefused: the function cannot travel; every reason is named with its cell and line.
        InvalidInput: data, model or options cannot work, every fault at once; or the run is on another backend.
        StorageFailed: the store is away, denies, or is not there.
        JobNotFound: the store has no run ``resume``; or another client that submits the run starts no job.
        JobFailed: the backend could not start the job.
    """
    return Request.check(function, run, backend_or_default(on)).submit(fresh=fresh, resume=resume)


@dataclass(frozen=True)
class Request:
    """A function and its Run, packed and checked; nothing is created yet."""

    max_attempts: int
    """The number that the caller has given; the backend may need another one."""
    source: Source
    packages: "Resolution | None"
    facts: Facts
    backend: Backend
    store: Store
    record: RunRecord
    """The record of the newest generation of the run."""

    @classmethod
    def check(cls, function: Callable[..., object] | Source, run: object, backend: Backend) -> "Request":
        """Packs the function, and checks it and its Run; raises what ``submit`` raises."""
        run = check_run(run)
        adapted = backend.adapt(run)
        source, packages = pack_function(function, adapted, backend)
        store, facts = check_inputs(backend, adapted)
        record = record_of(adapted, source, facts, store, packages)
        return cls(run.max_attempts, source, packages, facts, backend, store, record)

    @property
    def job(self) -> Job:
        """The job of the newest generation, whether there is one or not."""
        return Job(self.record, self.backend, self.store)

    def submit(self, *, fresh: bool = False, resume: str | None = None) -> Job:
        """Starts the job, or attaches to that of the same run; as the function ``submit``."""
        if fresh and resume is not None:
            raise InvalidInput(f"fresh=True trains from the beginning, resume={resume!r} does not; give one of them")
        record, backend, store, facts = self.record, self.backend, self.store, self.facts
        number = newest_number(store.names(record.keys.submissions))
        state = self.job.state if number else "Absent"
        if not fresh and state not in ("Absent", *WITHOUT_RESULT):
            return attach_to(record, backend, store, state, resume=resume)
        if state not in ("Absent", *ENDED):  # of two generations at once, no handle would lead to the older one
            raise InvalidInput(
                f"fresh=True: generation {record.generation} of {record.name} is {state}; wait for it, or stop it "
                f"first: `{how_to('cancel', record.name, backend, store.address)}`"
            )
        refuse_elsewhere(record.keys, backend, store)
        if resume is not None:
            record = resume_from(resume, record, backend, store)
        elif fresh and (state != "Absent" or store.list(f"{record.keys.attempts}/")):
            record, number = replace(record, generation=record.generation + 1), 0
        run = backend.prepare(record, facts.inputs, facts.num_model_bytes, store)
        if state != "Absent" and not fresh:
            print(f"{record.name}: already submitted, and it is {state}; a new job of it starts")
        # A branch of the Hub may move: what was checked, and named the run, is what every attempt loads.
        record = replace(record, run=replace_inputs(run, facts.commits), submission=number + 1, submitted=events.now())
        goes_on = goes_on_in(store, record)
        request = backend.request(record)
        check_ranks(record, request.ranks_per_worker)
        if self.packages:
            self.packages.upload(store)
        for note in (*facts.notes, *variables_note(self.source, backend), *notes(self.source, record.run)):
            print(shown(f"note: {note}"))
        addresses = input_addresses(record.run).values()
        if not start_job(record, self.source.text, self.source.cells, request, addresses, backend, store):
            return await_other(record, backend, store)
        generation = f"generation {record.generation}" if record.generation > 1 else ""
        summary = (generation, counted(run.workers, "worker"), facts.summary, goes_on and f"goes on {goes_on}")
        print(shown(f"{record.name}: submitted, {', '.join(filter(None, summary))}"))
        if run.max_attempts != self.max_attempts:
            print(
                f"note: max_attempts={run.max_attempts}, not {self.max_attempts}: a failure ends a job there; a worker "
                "that is deleted or evicted is replaced, and the training goes on"
            )
        if record.generation > self.record.generation:
            try:
                earlier = backend.job(self.record.job_name)  # to which no handle leads any more
                status = earlier.status()
                if status and status.is_over:  # another client may have submitted that generation again meanwhile
                    earlier.delete()
            except TrainFuncError as error:
                name = self.record.job_name
                print(shown(f"note: {name}, the job of the generation before, could not be removed: {error}"))
        return Job(record, backend, store, printed_notes=facts.notes)


def variables_note(source: Source, backend: Backend) -> Sequence[str]:
    """Notes which variables the function reads that are set here and reach no worker."""
    environment = getattr(backend, "environment", {})
    names = [
        name
        for name in source.variables
        if name in os.environ and name not in environment and not OF_A_WORKER.fullmatch(name)
    ]
    if not names:
        return ()
    example = ", ".join(f"{name!r}: ..." for name in names)
    on = name_of_backend(backend)
    return [
        f"{source.function} reads {listed(names)}, set here and not in a worker: give {on}(environment={{{example}}})"
    ]


def check_run(run: object) -> Run:
    """Returns the Run that a caller has given, by default one worker; raises InvalidInput for anything else."""
    if run is None:
        return Run()
    if isinstance(run, Run):
        return run
    raise InvalidInput(f"submit was given {type(run).__name__} as the run; a Run(task=...) is expected")


def record_of(run: Run, source: Source, facts: Facts, store: Store, packages: "Resolution | None" = None) -> RunRecord:
    """The record of what is asked for, as the newest generation that the store has of it."""
    run = with_absolute_paths(run, facts.fingerprints)
    modules = {module.partition(".")[0] for module in run.task.modules} if run.task else set()
    installed = modules.intersection(source.imports) - {"train_func"}  # a local module is part of the source
    distributions = packages_distributions() if installed else {}
    of_task = {name: version(name) for module in installed for name in distributions.get(module, ())}
    content: dict[str, Any] = {
        "function": source.function,
        "source_sha256": source.sha256,
        "fingerprints": facts.fingerprints,
    }
    name = name_of(run, **content, packages={**of_task, **(packages.versions if packages else {})})
    return RunRecord(
        run=run,
        name=name,
        generation=max(newest_generation(store, name), 1),
        store=store.address,
        wheels={wheel.path.name: wheel.sha256 for wheel in (packages.wheels if packages else ())},
        module=source.module,
        held_out_sha256=facts.held_out_sha256,
        **content,
    )


def attach_to(
    record: RunRecord, backend: Backend, store: Store, state: str, by: str = "", resume: str | None = None
) -> Job:
    """Attaches to the job that was submitted before; prints which of its options, of run and backend, are others."""
    before = Submission.newest(store, record.keys)
    if before is None:
        raise JobNotFound(
            f"job {record.job_name} of {backend.place} is {state}, and {store.address} holds no submission of it: "
            f"wait for its end, or end it by `{name_of_backend(backend)}(...).job({record.job_name!r}).delete()`; then "
            "submit the run again"
        )
    job = Job(before.run, backend, store)
    folder = f"{record.store}/{record.keys.prefix}"
    done = f"it was already done, and its run is kept in {folder}" if state == "Succeeded" else f"it is {state}"
    print(f"{job.name}: {by or done}; attached to it (fresh=True trains again)")
    complete_model(store, before.run, lambda: state)
    was = {**recorded_only(before.run.run), "train_func": before.run.package_version}
    now = {**recorded_only(record.run), "train_func": record.package_version}
    remedy = ""
    if resume and not goes_on_from(before.run, resume, store):
        was, now = {**was, "resume": before.run.resumes or None}, {**now, "resume": resume}
    if state != "Succeeded":
        was, now = {**was, **before.options}, {**now, **backend.request(job.record).options}
        cancel = how_to("cancel", job.name, backend, store.address)
        remedy = f"; for these stop it first, then submit again: `{cancel}`"
    if names := changed(was, now):
        values = [", ".join(f"{name}={options.get(name)}" for name in names) for options in (was, now)]
        print(shown(f"note: submitted with {values[0]}; you asked for {values[1]}{remedy}"))
    return job


def changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Returns the names under which two have different values."""
    return [name for name in {**before, **now} if before.get(name) != now.get(name)]


def await_other(record: RunRecord, backend: Backend, store: Store) -> Job:
    """Attaches to the job of the client that was quicker, as soon as there is one.

    Raises:
        InvalidInput: it is in another place.
        JobNotFound: there is none that runs after a while.
    """
    job = Job(record, backend, store)
    print(f"{job.name}: another client submits the same run; waiting up to {OTHER_SECONDS:.0f} s for its job")
    end = time.monotonic() + OTHER_SECONDS
    state = job.state
    while state in ("Absent", *WITHOUT_RESULT) and time.monotonic() < end:
        refuse_elsewhere(record.keys, backend, store)
        time.sleep(LOOK_SECONDS)
        state = job.state
    if state in ("Absent", *WITHOUT_RESULT):  # the end of a job from before, or of one that has failed by now
        raise JobNotFound(f"{job.name}: the other client that submitted the run has no job that runs; submit it again")
    return attach_to(record, backend, store, state, by=f"already submitted by another client and {state}")


def origin(name: str, store: Store) -> tuple[RunRecord, RunKeys]:
    """The record of the run of this name, and the keys of the run from whose checkpoints it goes on: mostly its own."""
    run = stored_record(store, RunKeys(name, newest_generation(store, name) or 1))
    if run.resumes and not newest_checkpoint(store, run.keys):  # it was to go on from another one itself
        return run, RunKeys(run.resumes, run.resumes_generation)
    return run, run.keys


def goes_on_from(record: RunRecord, name: str, store: Store) -> bool:
    """Returns whether a run was submitted with the run of this name as ``resume``."""
    if not record.resumes:
        return False
    if record.resumes.startswith(name):
        return True
    try:
        return origin(whole_name(store, name, "submit"), store)[1].name == record.resumes
    except JobNotFound:  # it was removed since
        return False


def resume_from(name: str, record: RunRecord, backend: Backend, store: Store) -> RunRecord:
    """The record with the run from whose checkpoints it goes on, as long as it has none of its own.

    Raises:
        JobNotFound: the store has no such run.
        InvalidInput: that has not ended, has no checkpoint, or another plan; or ``record`` has checkpoints of its own.
    """
    whole = whole_name(store, name, "submit")
    if whole == record.name:
        raise InvalidInput(f"resume={whole!r} is the run itself: it goes on from its own checkpoints without that")
    other, source = origin(whole, store)
    resumed = replace(record, resumes=source.name, resumes_generation=source.generation)
    checkpoint = newest_checkpoint(store, record.keys)
    if checkpoint:
        before = stored_record(store, record.keys)
        if before.resumes == source.name:
            return resumed
        raise InvalidInput(
            f"resume={name!r}: {record.name} has a checkpoint of its own, {checkpoint}, and goes on from that: submit "
            f"without resume. To go on from the other run instead, remove this one first: "
            f"`{how_to('remove', record.name, backend, store.address)}`"
        )
    state = Job(other, backend, store).state
    if state not in (*ENDED, "Absent"):
        raise InvalidInput(f"resume={whole!r}: that run is {state}; wait for its end, or stop it first")
    refuse_elsewhere(other.keys, backend, store)
    if not newest_checkpoint(store, source):
        raise InvalidInput(
            f"resume={whole!r}: that run has no checkpoint: it saved none, or has succeeded, and keeps none then. "
            "Submit without resume"
        )
    if names := [field for field in OF_PLAN if getattr(other.run, field) != getattr(record.run, field)]:
        was, now = (", ".join(f"{name}={getattr(run, name)}" for name in names) for run in (other.run, record.run))
        raise InvalidInput(
            f"resume={whole!r}: its checkpoint is of a training with {was}, and this Run has {now}. Give the Run "
            "the same, or submit without resume, which trains from the beginning"
        )
    return resumed


def check_ranks(record: RunRecord, ranks_per_worker: int) -> None:
    """Raises InvalidInput where there are more ranks than rows of a global batch."""
    workers = record.run.workers
    if record.run.task and (fault := ranks_fault(record.run, workers * ranks_per_worker)):
        gpus = f"workers={workers} with {counted(ranks_per_worker, 'GPU')} each: " if ranks_per_worker > 1 else ""
        raise InvalidInput(f"{gpus}{fault}")
