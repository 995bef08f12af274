"""The runs that a store holds, as a table: what each asked for, how it ended, its metrics, the size of its files."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from train_func.client import registry
from train_func.client.asked import differences
from train_func.client.backend import Backend, BoundJob
from train_func.client.elsewhere import status_here
from train_func.client.identity import newest_generation, stored
from train_func.client.in_place import all_in_place
from train_func.client.in_place_record import InPlace
from train_func.client.stored_run import cause_of_failure, state_in_store, state_of
from train_func.client.submission import SubmissionRecord
from train_func.errors import InvalidInput, StorageFailed
from train_func.layout import SHARED
from train_func.records import RunRecord
from train_func.result import Result
from train_func.run import NAME
from train_func.storage import Entry, Object, Store, open_store
from train_func.text import listed, shown

if TYPE_CHECKING:
    import pandas as pd

MOST_LETTERS = 48  # of a remark
AT_ONCE = 8  # runs that are read at the same moment
ALWAYS = ("name", "task", "submitted", "state", "workers")  # columns that the table has, empty or not
UNKNOWN = "Unknown"


@dataclass(frozen=True, kw_only=True)
class StoredRun:
    """One run of a store; of its generations the newest."""

    name: str
    num_bytes: int
    """Of all files in its folder: every attempt, every generation, the model."""
    record: RunRecord | None = None
    """None where none can be read."""
    state: str = UNKNOWN
    """As ``Job.state``."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """What was published and returned, as far as it is a number, a truth or a text."""
    in_place: Sequence[str] = ()
    """The names under which its model is in place, of an earlier generation with its number."""
    cause: str = ""
    """Of its failure, in one word; empty where it has not failed, or left no record of why."""
    remark: str = ""
    """What a user of the result has to know beside it, in a few words; ``result()`` prints all of it."""
    note: str = ""
    """Why something is not known."""

    @property
    def task(self) -> str:
        """The kind of its task; without one, its function."""
        if self.record is None:
            return ""
        task = self.record.run.task
        return task.kind.rpartition(":")[2].rpartition(".")[2] if task else f"{self.record.function}()"

    @property
    def submitted(self) -> str:
        """When, ISO, UTC; empty where that is not known."""
        return self.record.submitted if self.record else ""


def runs(name: str = "", *, on: Backend | None = None) -> "pd.DataFrame":
    """The runs in the store of a backend, newest first, as a DataFrame with one row for each.

    Columns: ``name``; ``task`` (or function); ``submitted`` (UTC); ``state``, as ``Job.state``, and Unknown where that
    cannot be told; ``workers``; ``cause`` of a failure, in one word; ``in_place``, the names under which its model is
    in place; what the runs shown were asked differently, such as ``epochs``, ``task.dataset``, ``parameters.lr``,
    ``packages`` or ``source``, of which the first letters of its hash are shown; their results, such as
    ``metrics.accuracy``; ``size_mb``, that of the run's folder in the store; ``note``, the beginning of what a user of
    the result has to know. Of causes, names, differences, results and notes, what is empty for all runs has no column.
    What cannot be read is printed, and hides no other run.

    Args:
        name: only runs whose name begins so.
        on: the backend, ``Local()`` by default.

    Raises:
        InvalidInput: the backend cannot be asked for its jobs.
        StorageFailed: the store is away, denies, or is not there.
    """
    import pandas as pd  # takes long to import

    found, notes = stored_runs(name, registry.given(on))
    for note in notes:
        print(f"note: {note}")
    asked = iter(differences([run.record for run in found if run.record]))
    rows = [
        {
            "name": run.name,
            "task": run.task,
            "submitted": run.submitted or None,
            "state": run.state,
            "workers": run.record and run.record.run.workers,
            "cause": run.cause or None,
            "in_place": ", ".join(run.in_place) or None,
            **(next(asked) if run.record else {}),
            **{f"metrics.{metric}": value for metric, value in run.metrics.items()},
        }
        for run in found
    ]
    told = {*ALWAYS, *(column for row in rows for column, value in row.items() if not _is_empty(value))}
    known = sorted(dict.fromkeys(column for row in rows for column in row), key=lambda one: one.startswith("metrics."))
    table = pd.DataFrame(rows, columns=[column for column in dict.fromkeys([*ALWAYS, *known]) if column in told])
    for column in set(table) - {*ALWAYS}:
        if table[column].map(lambda value: _is_empty(value) or type(value) is int).all():
            table[column] = table[column].astype("Int64")  # which an empty cell would make floats
    table["submitted"] = pd.to_datetime(table["submitted"], utc=True, format="ISO8601", errors="coerce")
    table["workers"] = table["workers"].astype("Int64")
    table = table.assign(size_mb=[round(run.num_bytes / 1e6, 3) for run in found])
    return table.assign(note=[run.remark for run in found]) if any(run.remark for run in found) else table


def _is_empty(value: Any) -> bool:
    return value is None or value == "" or value != value


def stored_runs(begin: str, backend: Backend) -> tuple[list[StoredRun], list[str]]:
    """The runs whose names begin so, newest first, and what is to be said of what cannot be read.

    The requests to the store are two, one for each name of a model in place, and for each run its listing, its record,
    its result, and of its newest attempt the lease and the end of each worker.
    """
    if not isinstance(begin, str):
        raise InvalidInput(f"name={begin!r}: how the names of the runs begin is expected, such as 'reviews'")
    store = open_store(backend.store_address())
    folders = [name.removesuffix("/") for name in store.names("") if name.endswith("/")]
    jobs = {job.name: job for job in backend.jobs()}
    held, notes = all_in_place(store)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        names = [name for name in folders if NAME.fullmatch(name) and name.startswith(begin)]
        found = [run for run in pool.map(lambda name: _stored_run(store, name, backend, jobs), names) if run]
    found = [replace(run, in_place=_names(held, run)) for run in found]
    found.sort(key=lambda run: (run.submitted, run.name), reverse=True)
    notes += [f"{run.name}: {run.note}" for run in found if run.note]
    if called := [run.name for run in found if not run.record and not run.note]:
        notes.append(
            f"no run.json in {listed(called)}: these functions were called without submit, or a part of the run is "
            "lost; remove(name) frees what they keep"
        )
    foreign = [name for name in folders if not NAME.fullmatch(name) and name not in SHARED]
    if foreign and not begin:
        notes.append(f"{store.address} also holds folders that are no runs: {listed(foreign)}")
    return found, [shown(note) for note in notes]


def _names(held: Sequence[InPlace], run: StoredRun) -> list[str]:
    newest = run.record.generation if run.record else 0
    own = (of for of in held if of.run == run.name)
    return [of.name if of.generation == newest else f"{of.name} (generation {of.generation})" for of in own]


class _Listing:
    """The folder of a run, listed once: what there is is answered from the listing, and each object is read once."""

    def __init__(self, store: Store, name: str) -> None:
        self.address = store.address
        self._store = store
        self._entries = store.list(f"{name}/")
        self._keys = {entry.key for entry in self._entries}
        self._read: dict[str, Object] = {}
        self.num_bytes = sum(entry.size for entry in self._entries)

    def get(self, key: str) -> Object:
        if key not in self._keys:
            raise StorageFailed(f"{self.address}/{key} is not there", reason="absent")
        if key not in self._read:
            self._read[key] = self._store.get(key)
        return self._read[key]

    def names(self, folder: str) -> list[str]:
        below = (key.removeprefix(f"{folder}/") for key in self._keys if key.startswith(f"{folder}/"))
        return sorted({first + slash for first, slash, _ in (key.partition("/") for key in below)})

    def list(self, prefix: str) -> list[Entry]:
        return [entry for entry in self._entries if entry.key.startswith(prefix)]


def _stored_run(store: Store, name: str, backend: Backend, jobs: Mapping[str, BoundJob]) -> StoredRun | None:
    """None when its folder has gone since it was listed."""
    listing = _Listing(store, name)
    if not listing.list(""):
        return None
    generation = newest_generation(listing, name)
    if generation == 0:
        return StoredRun(name=name, num_bytes=listing.num_bytes)
    record, state, cause, metrics, remark, note = None, UNKNOWN, "", dict[str, Any](), "", ""
    try:
        record = stored(listing, name, generation)
        state, cause, note = _state(listing, record, backend, jobs.get(record.job_name))
        if listing.list(record.keys.result):
            key = record.keys.result
            result = Result.read(listing.get(key).data, f"{store.address}/{key}")
            remark = shorten(result.note, MOST_LETTERS, placeholder=" ...")
            metrics = {
                name: value
                for name, value in {**result.metrics, **result.returned}.items()
                if isinstance(value, (int, float, str))
            }
    except (InvalidInput, StorageFailed) as error:
        if isinstance(error, StorageFailed) and error.reason not in ("damaged", "absent"):
            raise
        note = str(error)
    return StoredRun(
        name=name,
        num_bytes=listing.num_bytes,
        record=record,
        state=state,
        cause=cause,
        metrics=metrics,
        remark=remark,
        note=note,
    )


def _state(listing: _Listing, record: RunRecord, backend: Backend, job: BoundJob | None) -> tuple[str, str, str]:
    """The state of the job, the cause of its failure, and why the state is not known."""
    if job and (status := status_here(job, record, listing, backend)):
        state = state_of(status, published=lambda: bool(listing.list(record.keys.result)))
        if state == "Failed" and status.is_over_deadline:
            return state, "deadline", ""
    else:
        state = state_in_store(listing, record)
        if state == "Absent" and (kept := SubmissionRecord.read(listing, record.keys)) and not kept.is_at(backend):
            where = f"it was submitted to {kept.place}: there, runs({kept.expression}) tells its state"
            return UNKNOWN, "", where
    return state, cause_of_failure(listing, record) if state == "Failed" else "", ""
