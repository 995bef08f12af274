"""Removes a run with all its files: what goes is told first, and a removal that was interrupted can be made again.

What says that a run has succeeded goes first, so that nothing half is fetched or attached to; the submissions, by
which the run is found, go last. Inputs are shared by content: they are marked, then the submissions of all runs are
read, and what none names is deleted. A submission is written, and then looks for marks: one of the two sees the other.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

from train_func import tables as tables_module
from train_func.client.backend import Backend, BoundJob, backend_or_default
from train_func.client.elsewhere import Elsewhere
from train_func.client.model.fetch import as_fetched, fetched_folders, remove_fetched
from train_func.client.model.promote import all_in_place
from train_func.client.stored_run import generations, how_to, whole_name
from train_func.errors import InvalidInput, StorageFailed
from train_func.storage import Entry, Store, find, open_store
from train_func.text import counted, listed, shown, sized
from train_func.wire.layout import (
    MODEL_MANIFEST,
    REMOVAL_MARK,
    SHARED,
    SUBMISSIONS,
    SUMS,
    RunKeys,
    input_folder,
    removal_mark,
)

AT_ONCE = 8  # runs whose records are read at the same moment
_SHA256 = re.compile(rb"\b[0-9a-f]{64}\b")  # a record names files and wheels by it, in an address or alone
_STEPS = tuple(
    re.compile(rf"(?:generations/\d+/)?{step}")
    for step in (
        r"attempts/\d+/(?:worker-\d+\.json|end-.*)",  # without these the result alone tells of success
        r"result\.json",
        rf"model/(?:{re.escape(MODEL_MANIFEST)}|{SUMS})",  # without these the folder is no model
        rf"(?!{SUBMISSIONS}/|generations/).*",
        rf"(?<=/){SUBMISSIONS}/.*",
        r".*",
    )
)


def remove(name: str, *, on: Backend | None = None) -> None:
    """Removes a run for good: its jobs, and its files in the store. Prints first what goes.

    Its inputs in the store and its saved DataFrames go too, unless another run names them, and so do the unchanged
    files that ``fetch()`` and ``load()`` keep on this machine. A folder that ``fetch(to=...)`` named stays. Call it
    again to complete a removal that was interrupted.

    Args:
        name: the name of the run, or a beginning that no other run has, with at least one digit of the last part.
        on: the backend whose store has the run, ``Local()`` by default.

    Raises:
        InvalidInput: a job of the run, or of one that goes on from it or uses its files, has not ended, or cannot be
            asked; several runs are named so; or its model is in place under a name.
        JobNotFound: the store of that backend holds no such run; the most similar names are listed.
        StorageFailed: the store is away or denies; what is left can be removed by the same call.
    """
    removal = Removal.of(name, backend_or_default(on))
    print(f"removed now: {removal}", flush=True)
    removal.carry_out()


@dataclass(frozen=True)
class Removal:
    """What goes with a run, as it was found."""

    name: str
    store: Store
    submissions: Mapping[RunKeys, list[bytes]]
    """What the store holds of the submissions of each generation."""
    jobs: tuple[BoundJob, ...]
    """The jobs of all its generations, ended or gone."""
    files: tuple[Entry, ...]
    """The files in its folder in the store."""
    inputs: tuple[Entry, ...]
    """The inputs that no other run names."""
    fetched: Mapping[Path, Mapping[str, int]]
    """Sizes of the files that are as they were fetched or merged, by folder of this machine and name."""
    tables: tuple[Path, ...]
    """The tables saved on this machine that no other run needs."""

    @classmethod
    def of(cls, name: str, backend: Backend) -> "Removal":
        """Finds what goes with a run, and changes nothing. Raises what ``remove`` raises."""
        store = open_store(backend.store_address())
        # With its digits: a cell that runs again must not remove the next run of that name.
        name = whole_name(store, name, "remove", without_digits=False)
        if places := [model.name for model in all_in_place(store) if model.run == name]:
            raise InvalidInput(
                f"the model of {name} is in place as {listed(places, show=repr)}, and nothing was removed: promote "
                f"another run under that name first, or withdraw({places[0]!r})"
            )
        submissions = _submissions(store, name)
        jobs = tuple(_ended_job(store, keys, backend) for keys in submissions)
        named = _named(submissions)
        listed_inputs = {sha256: store.list(f"{input_folder(sha256)}/") for sha256 in sorted(named)}
        inputs = {sha256: entries for sha256, entries in listed_inputs.items() if entries}
        for other in _other_runs(store, name):
            _check_no_use_of(name, other, store, backend)
            for sha256 in _named(other):
                inputs.pop(sha256, None)
        return cls(
            name=name,
            store=store,
            submissions=submissions,
            jobs=jobs,
            files=tuple(store.list(f"{name}/")),
            inputs=tuple(chain(*inputs.values())),
            fetched={folder: as_fetched(folder) for folder in fetched_folders(name)},
            tables=tuple(tables_module.of_run(store.address, name)),
        )

    def __str__(self) -> str:
        inside = [counted(len(self.jobs), "generation")] if len(self.jobs) > 1 else []
        model = f"{RunKeys(self.name).model}/"
        known_by = (f"{model}{MODEL_MANIFEST}", f"{model}{SUMS}")  # also of a run that has published no files
        if published := [e for e in self.files if e.key.startswith(model) and e.key not in known_by]:
            inside.append(f"model/: {_amount(published)}")
        fetched = {
            f"what was fetched to {folder}": _amount(Entry(name, size) for name, size in sizes.items()) if sizes else ""
            for folder, sizes in self.fetched.items()
        }
        tables = [Entry(str(path), path.stat().st_size) for path in self.tables if path.exists()]
        parts = {
            f"{self.name}": f"{_amount(self.files)} in {self.store.address}/{self.name}/"
            + (f" ({', '.join(inside)})" if inside else ""),
            "inputs that no other run names": _amount(self.inputs) if self.inputs else "",
            **fetched,
            f"tables saved for it in {tables_module.tables_folder()}": _amount(tables) if self.tables else "",
        }
        return shown("; ".join(f"{what}: {amount}" for what, amount in parts.items() if amount))

    def carry_out(self) -> None:
        """Removes it.

        Raises StorageFailed, with reason "conflict" where it was submitted again or a worker still writes to it.
        """
        inputs = sorted({entry.key.split("/")[1] for entry in self.inputs})
        marks = {sha256: removal_mark(sha256, self.name) for sha256 in inputs}
        for mark in marks.values():
            self.store.put(mark, b"")
        if _submissions(self.store, self.name) != self.submissions:
            self.store.delete(*marks.values())
            raise StorageFailed(
                f"{self.name} was submitted again meanwhile, and nothing was removed: look at it, and remove it again",
                reason="conflict",
            )
        used = {sha256 for other in _other_runs(self.store, self.name) for sha256 in _named(other)} if marks else set()
        for job in self.jobs:
            job.delete()
        for folder in self.fetched:  # before the run: without it, no removal would find them again
            remove_fetched(folder)
        tables_module.release(self.store.address, self.name)
        for sha256, mark in marks.items():
            if sha256 not in used:
                marked = f"{input_folder(sha256)}/{REMOVAL_MARK}"
                files = (entry.key for entry in self.store.list(f"{input_folder(sha256)}/"))
                self.store.delete(*(key for key in files if not key.startswith(marked)))
            self.store.delete(mark)
        steps: list[list[str]] = [[] for _ in _STEPS]
        for key in (entry.key for entry in self.store.list(f"{self.name}/")):
            inside = key.removeprefix(f"{self.name}/")
            steps[next(step for step, pattern in enumerate(_STEPS) if pattern.fullmatch(inside))].append(key)
        for keys in steps:
            self.store.delete(*keys)
        if new_files := self.store.list(f"{self.name}/"):
            raise StorageFailed(
                f"{self.store.address}/{self.name}/ was written to while it was removed, {_amount(new_files)} came: "
                "remove the run again when its workers have ended",
                reason="conflict",
            )


def _ended_job(store: Store, keys: RunKeys, backend: Backend) -> BoundJob:
    """The job of a generation, where it was submitted to; raises InvalidInput unless it has ended or is gone."""
    try:
        other = Elsewhere.of(keys, store, backend)
    except StorageFailed as failure:
        if failure.reason != "damaged":
            raise
        raise InvalidInput(
            f"{failure}; where its job is, and whether it has ended, is unknown, and nothing was removed. Remove the "
            "run with the version that wrote it; or, where no job of it can live, delete its folder "
            f"{store.address}/{keys.name}/ with the tools of the store"
        ) from failure
    if other and other.job is None and other.may_run():
        raise InvalidInput(f"{other}; nothing was removed: {other.remedy}, and can be removed then")
    job = other.job if other and other.job else backend.job(keys.job_name)
    status = job.status()
    if status is None or (status.is_over and not status.deleting):
        return job
    cancel = other.submission.how_to("cancel") if other else how_to("cancel", keys.name, backend, store.address)
    raise InvalidInput(
        f"job {keys.job_name} has not ended, and nothing was removed: wait for it, or stop it first: `{cancel}`"
    )


def _submissions(store: Store, name: str) -> dict[RunKeys, list[bytes]]:
    """Returns the submissions of each generation of a run as the store has them; they are not decoded."""
    keys = [RunKeys(name, number) for number in generations(store, name)]
    records = {
        generation: [find(store, f"{generation.submissions}/{file}") for file in store.names(generation.submissions)]
        for generation in keys
    }
    return {generation: [record.data for record in objects if record] for generation, objects in records.items()}


def _other_runs(store: Store, name: str) -> Iterator[dict[RunKeys, list[bytes]]]:
    """Yields what the store holds of the submissions of each other run."""
    folders = (folder.removesuffix("/") for folder in store.names("") if folder.endswith("/"))
    other_names = [folder for folder in folders if folder not in (name, *SHARED)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield from pool.map(partial(_submissions, store), other_names)


def _named(submissions: Mapping[RunKeys, Iterable[bytes]]) -> set[str]:
    """Returns every SHA-256 in these submissions: those of inputs, and others."""
    return {sha256.decode() for data in chain(*submissions.values()) for sha256 in _SHA256.findall(data)}


def _check_no_use_of(name: str, other: Mapping[RunKeys, Iterable[bytes]], store: Store, backend: Backend) -> None:
    """Raises InvalidInput where another run that has not ended goes on from this one, or uses its files."""
    for keys, submissions in other.items():
        if any(name.encode() in data for data in submissions) and not find(store, keys.result):
            try:
                _ended_job(store, keys, backend)
            except InvalidInput as error:
                raise InvalidInput(f"{keys.name} goes on from {name}, or uses its files: {error}") from error


def _amount(files: Iterable[Entry]) -> str:
    sizes = [entry.size for entry in files]
    return f"{counted(len(sizes), 'file')}, {sized(sum(sizes))}"
