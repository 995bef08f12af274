"""Removes a run with all its files: what goes is told first, and a removal that was interrupted can be made again.

What says that a run has succeeded goes first, so that nothing half is fetched or attached to; ``run.json``, by which
the run is found, goes last.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from train_func import tables as tables_module
from train_func.client import registry
from train_func.client.backend import Backend, BoundJob
from train_func.client.elsewhere import Elsewhere
from train_func.client.fetch import as_fetched, remove_fetched
from train_func.client.in_place import names_of
from train_func.client.unknown_run import whole_name
from train_func.errors import InvalidInput, StorageFailed
from train_func.layout import INPUTS, MODEL_MANIFEST, RUN, SHARED, SUMS, RunKeys, later_generations
from train_func.storage import Entry, Object, Store, find, open_store
from train_func.text import counted, listed, shown, sized

AT_ONCE = 8  # objects that are read or removed at the same moment
ROUNDS = 3  # of removing: a worker may have written another file meanwhile
RESULT = 1  # the step of _STEPS after which a promotion fails
_SHA256 = re.compile(rb"\b[0-9a-f]{64}\b")  # a record names files and wheels by it, in an address or alone
_GENERATION = r"(?:generations/\d+/)?"
_CHECKPOINT = re.compile(rf"{_GENERATION}checkpoints/.+")
_STEPS = tuple(
    re.compile(step)
    for step in (
        rf"{_GENERATION}attempts/\d+/worker-\d+\.json",  # without these the result alone tells of success
        rf"{_GENERATION}result\.json",
        rf"model/(?:{re.escape(MODEL_MANIFEST)}|{SUMS})",  # without these the folder is no model
        rf"(?!{_GENERATION}{re.escape(RUN)}$).*",
        rf"generations/\d+/{re.escape(RUN)}",
        re.escape(RUN),
    )
)


def remove(name: str, *, on: Backend | None = None) -> None:
    """Removes a run: its files in the store, of all attempts and generations, and its jobs; says first what goes.

    The inputs that were carried to the store for it go too, unless another run names them, and so does what ``fetch()``
    and ``load()`` keep of it on this machine, as far as it is unchanged; a folder that ``fetch(to=...)`` named stays.
    The file that a DataFrame was saved to goes when no other run needs it.
    A removal that was interrupted is completed by another one.

    Args:
        name: of the run, as ``job.name`` and ``runs()`` give it; of its last part the first digits, at least one, are
            enough where they tell it from others.
        on: the backend whose store has the run, ``Local()`` by default.

    Raises:
        InvalidInput: a job of the run, or of one that goes on from its checkpoints, has not ended, or cannot be asked;
            several runs are named so; or its model is in place under a name, or is put there meanwhile.
        JobNotFound: the store of that backend holds no such run; the most similar names are listed.
        StorageFailed: the store is away or denies; what is left can be removed by the same call.
    """
    removal = Removal.of(name, registry.given(on))
    print(f"removed now: {removal}", flush=True)
    removal.carry_out()


@dataclass(frozen=True)
class Removal:
    """What goes with a run, as it was found."""

    name: str
    store: Store
    jobs: tuple[BoundJob, ...]
    """Of all its generations, ended or gone."""
    files: tuple[Entry, ...]
    """In its folder in the store."""
    inputs: tuple[Entry, ...]
    """Those that no other run names."""
    num_generations: int
    copy: Path
    """The folder of this machine in which a model of the run is that was fetched, if one is there."""
    fetched: Mapping[str, int]
    """Sizes of the files in it that are as they were fetched, by name."""
    tables: tuple[Path, ...]
    """Those saved on this machine that no other run needs."""

    @classmethod
    def of(cls, name: str, backend: Backend) -> "Removal":
        """Raises what ``remove`` raises; nothing is changed."""
        store = open_store(backend.store_address())
        name = whole_name(store, name, "remove", in_part=False)  # a cell that runs again must not remove the next one
        if names := names_of(store, name):
            raise InvalidInput(
                f"the model of {name} is in place as {listed(names, show=repr)}, and nothing was removed: promote "
                f"another run under that name first, or withdraw({names[0]!r})"
            )
        files = tuple(store.list(f"{name}/"))
        numbers = _generations(name, files)
        if any(_CHECKPOINT.fullmatch(entry.key.removeprefix(f"{name}/")) for entry in files):
            _check_not_resumed(store, name, backend)
        copy = backend.models_folder() / name
        return cls(
            name=name,
            store=store,
            jobs=tuple(_ended_job(store, RunKeys(name, number), backend) for number in numbers),
            files=files,
            inputs=tuple(_own_inputs(store, name, files)),
            num_generations=len(numbers),
            copy=copy,
            fetched=as_fetched(copy),
            tables=tuple(tables_module.of_run(store.address, name)),
        )

    def __str__(self) -> str:
        holds = [counted(self.num_generations, "generation")] if self.num_generations > 1 else []
        model = f"{RunKeys(self.name).model}/"
        known_by = (f"{model}{MODEL_MANIFEST}", f"{model}{SUMS}")  # also of a run that has published no files
        if published := [e.size for e in self.files if e.key.startswith(model) and e.key not in known_by]:
            holds.append(f"model/: {_told(published)}")
        inside = f" ({', '.join(holds)})" if holds else ""
        carried = _told([entry.size for entry in self.inputs])
        tables = _told([path.stat().st_size for path in self.tables if path.exists()])
        told = [
            f"{self.name}: {_told([entry.size for entry in self.files])} in {self.store.address}/{self.name}/{inside}",
            f"inputs that no other run names: {carried}" if self.inputs else "",
            f"what was fetched to {self.copy}: {_told([*self.fetched.values()])}" if self.fetched else "",
            f"tables saved for it in {tables_module.tables_folder()}: {tables}" if self.tables else "",
        ]
        return shown("; ".join(filter(None, told)))

    def carry_out(self) -> None:
        """Removes it; raises StorageFailed, with reason "conflict" where a worker still writes to it."""
        for job in self.jobs:
            job.delete()
        remove_fetched(self.copy)  # before the run: without it, no removal would find the copy again
        tables_module.release(self.store.address, self.name)
        left = self.files
        for _ in range(ROUNDS):
            with ThreadPoolExecutor(AT_ONCE) as pool:
                for step, keys in enumerate(self._in_order(entry.key for entry in left)):
                    results = [find(self.store, key) for key in keys] if step == RESULT else []
                    list(pool.map(self.store.delete, keys))
                    if step == RESULT:
                        self._check_not_promoted(dict(zip(keys, results, strict=True)))
            if not (left := tuple(self.store.list(f"{self.name}/"))):
                return
        came = _told([entry.size for entry in left])
        raise StorageFailed(
            f"{self.store.address}/{self.name}/ was written to while it was removed, {came} came: remove the run again "
            "when its workers have ended",
            reason="conflict",
        )

    def _check_not_promoted(self, results: Mapping[str, Object | None]) -> None:
        """Raises InvalidInput, with its results put back, where its model was put in place since the removal began.

        A promotion that ends later finds no result, and puts back what was in place.
        """
        if names := names_of(self.store, self.name):
            for key, found in results.items():
                if found:
                    self.store.put(key, found.data)
            raise InvalidInput(
                f"the model of {self.name} was put in place as {listed(names, show=repr)} while the run was removed; "
                f"run and model are kept: promote another run under that name, or withdraw({names[0]!r}), and remove "
                "it again"
            )

    def _in_order(self, keys: Iterable[str]) -> Iterator[list[str]]:
        """What is removed at once, step after step; of the inputs what no run names that was submitted meanwhile."""
        found: list[list[str]] = [[] for _ in _STEPS]
        for key in keys:
            inside = key.removeprefix(f"{self.name}/")
            found[next(number for number, step in enumerate(_STEPS) if step.fullmatch(inside))].append(key)
        yield from found[:-2]
        yield [entry.key for entry in _own_inputs(self.store, self.name, self.files)] if self.inputs else []
        yield from found[-2:]


@dataclass(frozen=True)
class _Keyed:
    """Stands for the record of a generation, which may be damaged."""

    keys: RunKeys


def _ended_job(store: Store, keys: RunKeys, backend: Backend) -> BoundJob:
    """The job of a generation, where it was submitted to; raises InvalidInput unless it has ended or is gone."""
    other = Elsewhere.of(_Keyed(keys), store, backend)
    if other and other.job is None:
        if other.may_run():
            raise InvalidInput(f"{other}; nothing was removed: {other.remedy}, and can be removed then")
        return backend.job(keys.job_name)
    job = other.job if other and other.job else backend.job(keys.job_name)
    status = job.status()
    if status is None or (not status.deleting and (status.finished or status.interrupted)):
        return job
    on = other.submission.expression if other else registry.expression(registry.name_of(backend), backend.found_by)
    raise InvalidInput(
        f"job {keys.job_name} has not ended, and nothing was removed: wait for it, or stop it first: "
        f"attach({keys.name!r}{on and f', {on}'}).cancel()"
    )


def _check_not_resumed(store: Store, name: str, backend: Backend) -> None:
    """Raises InvalidInput where another run that has not ended goes on from the checkpoints of this one."""

    def resuming(other: str) -> list[RunKeys]:
        numbers = (1, *later_generations(store.names(RunKeys(other).generations)))
        return [keys for number in numbers if _resumes(store, keys := RunKeys(other, number), name)]

    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = [keys for of_run in pool.map(resuming, _others(store, name)) for keys in of_run]
    for keys in found:
        try:
            _ended_job(store, keys, backend)
        except InvalidInput as error:
            raise InvalidInput(f"{keys.name} goes on from the checkpoints of {name}: {error}") from error


def _resumes(store: Store, keys: RunKeys, name: str) -> bool:
    """Whether this generation of a run goes on with that run, and has no result yet."""
    try:
        record = find(store, keys.run)
        return bool(record and json.loads(record.data).get("resumes") == name and not find(store, keys.result))
    except (ValueError, AttributeError, RecursionError):  # no record that a worker could read
        return False


def _generations(name: str, files: Iterable[Entry]) -> list[int]:
    folder = f"{RunKeys(name).generations}/"
    below = (entry.key.removeprefix(folder) for entry in files if entry.key.startswith(folder))
    return [1, *later_generations(key.partition("/")[0] for key in below)]


def _own_inputs(store: Store, name: str, files: Iterable[Entry]) -> list[Entry]:
    """The objects of the inputs that the records of this run name and those of no other run."""
    there = {entry.key for entry in files}
    runs = [RunKeys(name, number).run for number in _generations(name, files)]
    named = _named(store, [key for key in runs if key in there])
    own = {sha256: found for sha256 in sorted(named) if (found := store.list(f"{INPUTS}/{sha256}/"))}
    if not own:
        return []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        shared = set().union(*pool.map(lambda other: _named(store, _records(store, other)), _others(store, name)))
    return [entry for sha256, found in own.items() if sha256 not in shared for entry in found]


def _others(store: Store, name: str) -> list[str]:
    folders = (folder.removesuffix("/") for folder in store.names("") if folder.endswith("/"))
    return [folder for folder in folders if folder not in (name, *SHARED)]


def _records(store: Store, name: str) -> list[str]:
    """Keys of the records of all generations of a run."""
    return [RunKeys(name, number).run for number in (1, *later_generations(store.names(RunKeys(name).generations)))]


def _named(store: Store, keys: Iterable[str]) -> set[str]:
    """What these records name by its SHA-256: inputs, and other things."""
    found = (find(store, key) for key in keys)
    return {sha256.decode() for record in found if record for sha256 in _SHA256.findall(record.data)}


def _told(sizes: Sequence[int]) -> str:
    return f"{counted(len(sizes), 'file')}, {sized(sum(sizes))}"
