"""The runs that a store holds, as a table: what each asked for, how it ended, its metrics, the size of its files."""

import json
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from textwrap import shorten
from typing import TYPE_CHECKING, Any, NamedTuple

from train_func import tables
from train_func.client.backend import Backend, BoundJob, backend_or_default
from train_func.client.model.promote import all_in_place
from train_func.client.stored_attempts import cause_of_failure, state_in_store
from train_func.client.stored_run import (
    STATES,
    Submission,
    newest_generation,
    published_result,
    state_of,
    status_here,
)
from train_func.errors import InvalidInput, StorageFailed
from train_func.fields import field_names
from train_func.run import NAME, Run
from train_func.storage import Entry, Object, Store, open_store
from train_func.tasks import KIND
from train_func.text import listed, shown
from train_func.wire.layout import SHARED, RunKeys
from train_func.wire.records import RunRecord

if TYPE_CHECKING:
    import pandas as pd

MOST_LETTERS = 48  # of a note
AT_ONCE = 8  # runs that are read at the same moment
ALWAYS = ("name", "state", "submitted", "workers", "size_mb", "task")  # columns that the table has, empty or not
UNKNOWN = "Unknown"
METRIC = "metrics."  # begins the columns of results
FIRST, LAST = ("name", "state"), ("task", "note")  # columns; where there is no room, the last ones are cut
_OPTIONAL = ("parameters.", "inputs.", "packages")  # a run that lacks one of these differs from one that has it

Row = dict[str, Any]  # cells by column


def runs(name: str = "", *, state: str | Collection[str] = (), on: Backend | None = None) -> "pd.DataFrame":
    """Returns the runs in the store of a backend, newest first, as a DataFrame with a row for each, by its name.

    Columns: ``state``, as ``Job.state``, or Unknown; the results, such as ``metrics.accuracy``; ``submitted`` (UTC);
    ``workers``; ``size_mb``, the size of the run in the store; ``cause``, of a failure; ``in_place``, the names under
    which the model is in place; the fields in which the runs differ, such as ``epochs``, ``task.dataset``,
    ``parameters.lr``, ``packages`` or ``source`` (the first letters of its hash); ``task`` (or function); ``note``, the
    beginning of the note on the result. A column that is empty for all runs is left out. A run that cannot be read is
    printed, and hides no other. As the last expression of a cell the table also shows how long ago each run was
    submitted, and its losses as a curve; as text it has the columns that fit into the width of the terminal.

    Args:
        name: only runs whose name begins so.
        state: only runs in this state, such as ``"Failed"``, or in one of several.
        on: the backend, ``Local()`` by default.

    Raises:
        InvalidInput: there is no such state, or the backend cannot be asked for its jobs.
        StorageFailed: the store is away, denies, or is not there.
    """
    import pandas as pd  # takes long to import

    from train_func.client.display.runs_table import RunsTable

    backend = backend_or_default(on)
    rows, notes = stored_runs(name, backend, state)
    for note in notes:
        print(f"note: {note}")
    for row in rows:
        row["size_mb"] = round(row.pop("num_bytes") / 1e6, 3)
    filled = (column for row in rows for column, value in row.items() if value not in (None, "") and value == value)
    table = pd.DataFrame(rows, columns=sorted(dict.fromkeys([*ALWAYS, *filled]), key=_order))
    for column in table:
        cells = [row.get(column) for row in rows]
        if {*map(type, cells)} == {int, type(None)}:  # of which pandas makes floats
            try:
                table[column] = pd.array(cells, dtype="Int64")
            except OverflowError:  # more than 64 bits
                table[column] = pd.array(cells, dtype=object)
    table["submitted"] = pd.to_datetime(table["submitted"], utc=True, format="ISO8601", errors="coerce")
    table["workers"] = table["workers"].astype("Int64")
    shown_table = RunsTable(table.set_index("name"))
    shown_table.attrs["store"] = backend.store_address()
    return shown_table


def _order(column: str) -> int:
    """Returns the place of a column: the state and the results before what is long."""
    if column in FIRST:
        return 0
    if column.startswith(METRIC):
        return 1
    return 2 if column not in LAST else 3 + LAST.index(column)


class _Run(NamedTuple):
    row: Row
    record: RunRecord | None
    """None where none can be read."""
    problem: str = ""
    """Why something is not known."""


def stored_runs(begin: str, backend: Backend, state: str | Collection[str] = ()) -> tuple[list[Row], list[str]]:
    """The runs whose names begin so, newest first, and what is to be said of what cannot be read.

    ``state``: only runs in this state, or in one of several; small letters do.

    The requests to the store are a few for each name of a model in place, and for each run its listing, its record and
    its result.
    """
    if not isinstance(begin, str):
        raise InvalidInput(f"name={begin!r}: how the names of the runs begin is expected, such as 'reviews'")
    states = {name.lower(): name for name in (*STATES, UNKNOWN)}
    names = [state] if isinstance(state, str) else state
    unknown = [name for name in names if str(name).lower() not in states]
    if unknown:
        raise InvalidInput(f"state={unknown[0]!r}: one or several of {', '.join(states.values())} are expected")
    chosen = {states[name.lower()] for name in names}
    store = open_store(backend.store_address())
    jobs = {job.name: job for job in backend.jobs()}
    damaged: list[str] = []
    in_place = all_in_place(store, damaged)
    folders = [name.removesuffix("/") for name in store.names("") if name.endswith("/")]
    names = [name for name in folders if NAME.fullmatch(name) and name.startswith(begin)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        stored = [run for run in pool.map(lambda name: _read_run(store, name, backend, jobs), names) if run]
    stored.sort(key=lambda run: (run.row["submitted"] or "", run.row["name"]), reverse=True)
    rows = [run for run in stored if not chosen or run.row["state"] in chosen]
    for run, cells in zip(rows, differences([run.record for run in rows]), strict=True):
        newest = run.record.generation if run.record else 0
        places = [
            model.name if model.generation == newest else f"{model.name} (generation {model.generation})"
            for model in in_place
            if model.run == run.row["name"]
        ]
        run.row.update(in_place=", ".join(places) or None, **cells)
    notes = [*damaged, *(f"{run.row['name']}: {run.problem}" for run in stored if run.problem)]
    unsubmitted = [run.row["name"] for run in stored if not run.record and not run.problem]
    if unsubmitted:
        notes.append(
            f"no submission in {listed(unsubmitted)}: these functions were called without submit, or a part of the run "
            "is lost; removing them frees what they keep"
        )
    foreign = [name for name in folders if not NAME.fullmatch(name) and name not in SHARED]
    if foreign and not begin:
        notes.append(f"{store.address} also holds folders that are no runs: {listed(foreign)}")
    return [run.row for run in rows], [shown(note) for note in notes]


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


def _read_run(store: Store, name: str, backend: Backend, jobs: Mapping[str, BoundJob]) -> _Run | None:
    """Reads what the store holds of a run; None where its folder has gone since it was listed."""
    listing = _Listing(store, name)
    if not listing.list(""):
        return None
    row: Row = {"name": name, "task": "", "submitted": None, "state": UNKNOWN, "workers": None, "cause": None}
    row |= {"num_bytes": listing.num_bytes, "note": ""}
    keys, record = RunKeys(name, newest_generation(listing, name) or 1), None
    try:
        submission = Submission.newest(listing, keys)
        if submission is None:
            return _Run(row, None)
        record, job = submission.run, jobs.get(keys.job_name)
        task = record.run.task
        row["task"] = task.kind.rpartition(":")[2].rpartition(".")[2] if task else f"{record.function}()"
        row |= {"submitted": record.submitted or None, "workers": record.run.workers}
        status = status_here(job.status(), keys, listing, backend) if job else None
        if status:
            row["state"] = state_of(status, published=lambda: bool(listing.list(keys.result)))
        else:
            row["state"] = state_in_store(listing, keys)
        if row["state"] == "Failed":
            is_late = status is not None and status.is_over_deadline
            row["cause"] = "deadline" if is_late else cause_of_failure(listing, keys) or None
        if row["state"] == "Absent" and not submission.is_at(backend):
            row["state"] = UNKNOWN
            return _Run(row, record, f"it {submission.whereabouts}")
        if result := published_result(listing, keys):
            row |= {
                f"{METRIC}{name}": value
                for name, value in result.values.items()
                if isinstance(value, (int, float, str))
            }
            row["note"] = shorten(result.note, MOST_LETTERS, placeholder=" ...")
    except (InvalidInput, StorageFailed) as error:
        if isinstance(error, StorageFailed) and error.reason not in ("damaged", "absent"):
            raise
        return _Run(row, record, str(error))
    return _Run(row, record)


def differences(records: Sequence[RunRecord | None]) -> list[dict[str, Any]]:
    """For each run the cells of the columns in which those differ that have the column.

    A run without a task has only those fields of Run that one such run has set: most functions never use the others.
    """
    default = Run()
    set_without_task = {
        name
        for record in records
        if record and record.run.task is None
        for name in field_names(Run)
        if getattr(record.run, name) != getattr(default, name)
    }
    columns_of_runs = [_columns_of(record, set_without_task) if record else {} for record in records]
    values: dict[str, list[str]] = {}
    for cells in columns_of_runs:
        for column, value in cells.items():
            values.setdefault(column, []).append(repr(value))
    num_known = sum(map(bool, columns_of_runs))
    different = [
        column
        for column, texts in values.items()
        if len(set(texts)) > 1 or (column.startswith(_OPTIONAL) and len(texts) < num_known)
    ]
    return [{column: cells[column] for column in different if column in cells} for cells in columns_of_runs]


def _columns_of(record: RunRecord, set_without_task: Collection[str]) -> dict[str, Any]:
    """Returns what was asked for, by the column that shows it; without a task only the fields that one such run set."""
    run = record.run
    task = run.task.to_dict() if run.task else {}
    flat = {f"task.{name}": value for name, value in task.items() if name != KIND}
    for name in field_names(Run):
        value = getattr(run, name)
        if isinstance(value, Mapping):
            flat |= {f"{name}.{key}": part for key, part in value.items()}
        elif name not in ("task", "workers", "name") and (task or name in set_without_task):
            flat[name] = value
    if record.wheels:
        flat["packages"] = ", ".join("==".join(wheel.split("-")[:2]) for wheel in sorted(record.wheels))
    return {
        "generation": record.generation,
        "source": record.source_sha256[:7],
        **{name: _cell(value) for name, value in flat.items()},
    }


def _cell(value: Any) -> Any:
    if isinstance(value, str) and tables.is_one(value):
        return tables.in_words(value)
    return value if isinstance(value, (int, float, str, type(None))) else json.dumps(value)
