"""A run as its store holds it: its submissions, how its workers ended, and what it has published."""

import contextlib
import difflib
import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from train_func import tables
from train_func.client.backend import (
    DEFAULT,
    OF_COMMANDS,
    Backend,
    JobRequest,
    RunsAlready,
    argument_of,
    make_backend,
    name_of_backend,
)
from train_func.client.status import JobStatus
from train_func.errors import InvalidInput, JobNotFound, StorageFailed, TrainFuncError
from train_func.run import NAME
from train_func.storage import Readable, Store, find, put_new
from train_func.text import in_ipython, listed
from train_func.wire.events import now
from train_func.wire.layout import (
    INPUTS,
    MODEL_MANIFEST,
    REMOVAL_MARK,
    RunKeys,
    input_folder,
    later_generations,
    newest_number,
    record_numbers,
)
from train_func.wire.records import RunRecord, SubmissionRecord

if TYPE_CHECKING:
    from train_func.wire.result import Result

WITHOUT_RESULT = ("Failed", "Cancelled", "Interrupted")
ENDED = ("Succeeded", *WITHOUT_RESULT)  # states of a job
STATES = ("Created", "Running", "Restarting", "Suspended", *ENDED, "Absent")  # all of them
SIMILAR, MOST = 5, 20  # names that an error shows: of those that a store holds, of those that a beginning may mean
_POSSIBLE = re.compile(r"\w[\w.-]*")  # what may be meant as a name


@dataclass(frozen=True, kw_only=True)
class Submission(SubmissionRecord):
    """A submission as a client sees it, which leads to the job."""

    @classmethod
    def newest(cls, store: Readable, keys: RunKeys) -> "Submission | None":
        """Returns the newest submission of a generation of a run; None where the store has none.

        Raises StorageFailed (reason "damaged") where it is none that this version reads.
        """
        for number in record_numbers(store.names(keys.submissions)):
            key = keys.submission(number)
            record = find(store, key)
            if record:  # else its client took it back just now
                return cls.from_json(record.data, f"{store.address}/{key}")
        return None

    def is_at(self, backend: Backend) -> bool:
        """Returns whether its job is where the jobs of ``backend`` are."""
        if self.backend != name_of_backend(backend):
            return False
        identity = backend.identity
        kind = next((kind for kind in identity if kind in self.identity), None)
        return kind is not None and identity[kind] == self.identity[kind]

    def how_to(self, verb: str) -> str:
        """Returns what does this with its job, in the place of the job."""
        return _call_or_command(verb, self.run.name, self.backend, self.found_by, self.run.store)

    @property
    def whereabouts(self) -> str:
        """Where its job is, behind the name of the run."""
        return f"was submitted to {self.place}: there, `{self.how_to('watch')}` shows it"

    def reachable(self) -> Backend | None:
        """The backend whose job it is; None where its options lead to another place from here, or to none."""
        with contextlib.suppress(TrainFuncError, KeyError, TypeError, ImportError):
            backend = make_backend(self.backend, self.found_by)
            return backend if self.is_at(backend) else None
        return None


def run_names(store: Store) -> list[str]:
    """Returns the folders of a store that are runs; one listing."""
    folders = (folder.removesuffix("/") for folder in store.names("") if folder.endswith("/"))
    return [name for name in folders if NAME.fullmatch(name)]


def generations(store: Readable, name: str) -> list[int]:
    """The numbers that a generation of the run may have, in ascending order."""
    return [1, *later_generations(store.names(RunKeys(name).generations))]


def newest_generation(store: Readable, name: str) -> int:
    """The newest generation of a run that was submitted; 0 when the store has none."""
    numbers = reversed(generations(store, name))
    return next((number for number in numbers if store.names(RunKeys(name, number).submissions)), 0)


def stored_record(store: Readable, keys: RunKeys) -> RunRecord:
    """The record of a run that was submitted before.

    Raises:
        StorageFailed: (reason "damaged") it is no record of a run that this version reads.
        InvalidInput: the Run in it is invalid.
    """
    submission = Submission.newest(store, keys)
    if submission is None:
        raise StorageFailed(f"{store.address}/{keys.submissions} holds no submission", reason="absent")
    return submission.run


def whole_name(store: Store, name: object, function: str, *, without_digits: bool = True) -> str:
    """The name of the run that is meant: its whole name, or a beginning that no other run has.

    ``function`` was called, such as ``attach``. ``without_digits``: a beginning without a digit of the hash is enough.

    Raises:
        InvalidInput: it is no name, or several runs begin with it.
        JobNotFound: none is; the most similar names are listed.
    """
    if not isinstance(name, str) or not _POSSIBLE.fullmatch(name):
        raise InvalidInput(f"{function} was given {name!r}; the name of a run is expected, such as job.name")
    if NAME.fullmatch(name) and store.names(name):  # without a look at all the others
        return name
    runs = run_names(store)
    names = [run for run in runs if run.startswith(name)]
    whole = [run for run in names if without_digits or len(name) > run.rindex("-") + 1]
    if len(whole) == 1:
        return whole[0]
    if len(whole) > 1:
        more = "give one of these names, or more of it"
        raise InvalidInput(f"{len(whole)} runs begin with {name!r}: {listed(whole, MOST)}; {more}")
    if names:
        raise JobNotFound(
            f"{function}({name!r}): the first digits of the last part of a name are expected too; {store.address} "
            f"holds {listed(names, MOST)}"
        )
    nearest = ", ".join(difflib.get_close_matches(name, runs, SIMILAR, cutoff=0))
    here = f"it holds: {nearest or 'none'}" if len(runs) <= SIMILAR else f"of its {len(runs)} the nearest: {nearest}"
    raise JobNotFound(
        f"{store.address} holds no run {name!r}; {here}. Another store is named by {function}(..., on=Local(store=...))"
        ", on=Cluster(store=...), TRAIN_FUNC_STORE or TRAIN_FUNC_HOME (--store of the command)"
    )


def submission_time(store: Readable, keys: RunKeys) -> str:
    """Time of the newest submission, ISO; empty where the store has no record of the run."""
    newest = Submission.newest(store, keys)
    return newest.run.submitted if newest else ""


def start_job(
    record: RunRecord,
    source: str,
    cells: Mapping[str, Any],
    request: JobRequest,
    addresses: Iterable[str],
    backend: Backend,
    store: Store,
) -> bool:
    """Writes the submission and starts its job; returns False if another client has submitted the run meanwhile.

    ``record`` has the number of this submission, ``cells`` tell where the lines of the source come from, and
    ``addresses`` are those of the inputs.
    """
    key = record.keys.submission(record.submission)
    submission = SubmissionRecord(
        run=record,
        cells=cells,
        manifest=request.manifest,
        backend=name_of_backend(backend),
        place=backend.place,
        identity=backend.identity,
        found_by=request.found_by,
        options=request.options,
    )
    store.put(record.keys.source, source.encode())  # the same bytes from every client of the run
    addresses = list(addresses)
    if not put_new(store, key, submission.to_json()):
        return False
    if fault := _removed_input(store, record, addresses, backend):
        store.delete(key)
        raise StorageFailed(fault, reason="conflict")
    notes = tables.keep(record.store, record.name, addresses)
    try:
        backend.submit(request)
    except RunsAlready:
        store.delete(key)  # no job has it
        return False
    except TrainFuncError as failure:
        if failure.cause != "cluster":  # then the job may have come although no answer did
            store.delete(key)
            for note in notes:
                note.unlink(missing_ok=True)
        raise
    except KeyboardInterrupt:
        cancel = how_to("cancel", record.name, backend, store.address)
        print(f"{record.name}: interrupted while it was created; if it is there, it goes on: `{cancel}` stops it")
        raise
    return True


def _removed_input(store: Store, record: RunRecord, addresses: Iterable[str], backend: Backend) -> str:
    """Returns why an input in the store may be gone before the workers read it; empty where all of them stay.

    A removal reads the submissions after it has set its marks, so that it sees one that is written before this.
    """
    inputs = f"{store.address}/{INPUTS}/"
    carried = {address.removeprefix(inputs).partition("/")[0] for address in addresses if address.startswith(inputs)}
    for sha256 in sorted({*carried, *record.wheels.values()}):
        names = store.names(input_folder(sha256))
        removed_with = [name.removeprefix(REMOVAL_MARK) for name in names if name.startswith(REMOVAL_MARK)]
        if removed_with or not names:
            complete = ""
            if removed_with:
                remove = how_to("remove", removed_with[0], backend, store.address)
                complete = f". Where that was interrupted, complete it first: `{remove}`"
            return (
                f"{store.address}/{input_folder(sha256)}, an input of {record.name}, is being removed with "
                f"{listed(removed_with) or 'another run'}, and nothing was submitted: submit again, which uploads it "
                f"again{complete}"
            )
    return ""


def published_result(store: Readable, keys: RunKeys) -> "Result | None":
    """Returns what a generation has published; None when that is nothing."""
    from train_func.wire.result import Result

    manifest = find(store, keys.result)
    return Result.read(manifest.data, f"{keys.result} in {store.address}") if manifest else None


def complete_model(store: Store, record: RunRecord, state: Callable[[], str]) -> None:
    """Completes the model folder of a run that has published, if its last worker was killed before it had done so.

    ``state``: of the job, which is asked for only then. A store that denies it or is away keeps the folder as it is.
    """
    from train_func.wire.result import complete

    with contextlib.suppress(TrainFuncError):
        result, manifest = (find(store, key) for key in (record.keys.result, f"{record.keys.model}/{MODEL_MANIFEST}"))
        if result and not (manifest and manifest.data == result.data) and state() in ENDED:
            complete(store, record)


def published_keys(store: Readable, keys: RunKeys) -> RunKeys:
    """Returns the keys of the newest generation of a run that has published; ``keys`` where none has."""
    newest_first = (RunKeys(keys.name, number) for number in reversed(generations(store, keys.name)))
    return next((each for each in newest_first if store.list(each.result)), keys)


def newest_checkpoint(store: Readable, keys: RunKeys) -> str:
    """Returns in words after which step the run goes on; empty where it has no checkpoint.

    Workers verify the checkpoint, and take the one before where it is damaged.
    """
    ids = filter(None, (keys.checkpoint_id(entry.key) for entry in store.list(f"{keys.checkpoints}/")))
    newest = max((checkpoint for checkpoint in ids if checkpoint.step), default=None)
    if newest is None:
        return ""
    return f"after step {newest.step}{f' of its training {newest.training + 1}' if newest.training else ''}"


def goes_on_in(store: Readable, record: RunRecord) -> str:
    """Returns what the next attempt of the run goes on from, in words; empty where it begins at the first step.

    That is the newest checkpoint of the run, or else of the run that it resumes. After a result nothing is left to do.
    """
    if store.list(record.keys.result):
        return "with the publication of what is trained"
    checkpoint = newest_checkpoint(store, record.keys)
    if checkpoint or not record.resumes:
        return checkpoint
    checkpoint = newest_checkpoint(store, RunKeys(record.resumes, record.resumes_generation))
    return checkpoint and f"{checkpoint} of {record.resumes}"


def mark_cancelled(store: Store, keys: RunKeys) -> None:
    """Records that the job was cancelled, for when the job itself is gone."""
    newest = newest_number(store.names(keys.submissions))
    store.put(keys.cancelled(newest), json.dumps({"time": now()}).encode())


def is_cancelled(store: Readable, keys: RunKeys) -> bool:
    """Returns whether the job of the newest submission was cancelled, as ``mark_cancelled`` records it."""
    newest = newest_number(store.names(keys.submissions))
    return f"{newest}.json" in store.names(keys.cancellations)


def state_of(status: JobStatus, *, published: Callable[[], bool]) -> str:
    """One word for the state of a job: its newest true condition.

    A job that was cancelled, or that has lost its controller, has succeeded if the result is ``published``.
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


def status_here(status: JobStatus | None, keys: RunKeys, store: Readable, here: Backend) -> JobStatus | None:
    """Returns the status of the job of a run.

    It is None where the job is being deleted, or has ended and the run was submitted elsewhere since. While the store
    is away, what the backend says counts.
    """
    if status is None or status.deleting:
        return None
    if not status.is_over:
        return status
    try:
        newest = Submission.newest(store, keys)
    except StorageFailed as failure:
        if failure.reason == "unreachable":
            return status
        raise
    return status if newest is None or newest.is_at(here) else None


def attach_expression(name: str, backend: Backend) -> str:
    """Returns what is written to get the handle on a run of this backend."""
    return f"attach({_arguments(name, name_of_backend(backend), backend.found_by)})"


def how_to(verb: str, name: str, backend: Backend, store: str) -> str:
    """Returns what does this with a run of this backend: a call in a notebook, a command elsewhere.

    ``verb``: a command that is named as a method of Job, or ``"remove"``. ``store``: the address of the run's store.
    """
    return _call_or_command(verb, name, name_of_backend(backend), backend.found_by, store)


def _call_or_command(verb: str, name: str, backend: str, found_by: Mapping[str, Any], store: str) -> str:
    if in_ipython() or backend not in OF_COMMANDS:
        arguments = _arguments(name, backend, found_by)
        return f"remove({arguments})" if verb == "remove" else f"attach({arguments}).{verb}()"
    if backend == DEFAULT and make_backend(DEFAULT, {}).store_address() == store:
        where = []
    else:
        options = [f"{option}={value}" for option, value in found_by.items() if option != "store"]
        where = ["--on", backend, "--store", store, *(["--option", *options] if options else [])]
    return shlex.join(["python", "-m", "train_func", verb, name, *where])


def _arguments(name: str, backend: str, found_by: Mapping[str, Any]) -> str:
    on = argument_of(backend, found_by)
    return f"{name!r}{on and f', {on}'}"
