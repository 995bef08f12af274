"""The unfinished run that a new one resembles: a changed line of the source makes another run, with no checkpoint."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from train_func.client.backend import Backend
from train_func.client.identity import newest_generation, stored
from train_func.client.job import Job
from train_func.client.stored_run import newest_checkpoint
from train_func.client.unknown_run import alike
from train_func.counted import listed
from train_func.errors import TrainFuncError
from train_func.records import RunRecord
from train_func.run import name_of
from train_func.storage import Store

AT_ONCE, MOST = 8, 64  # runs that are looked at, at the same moment and in all


def unfinished_note(asked: RunRecord, backend: Backend, store: Store) -> str:
    """Of the runs with a checkpoint that differ from ``asked`` in source or parameters alone, the newest; mostly "".

    Best effort: what cannot be read is left out.
    """
    try:
        others = alike(store, asked.name)[:MOST]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            found = [record for record in pool.map(lambda name: _alike(store, name, asked), others) if record]
        if not found:
            return ""
        other = max(found, key=lambda record: record.submitted)
        if (state := Job(other, backend, store).state) == "Succeeded":
            return ""
        return (
            f"{asked.name} is a new run: {_differing(other, asked)} differ from {other.name}, which is {state}. The "
            f"checkpoint of that one, {newest_checkpoint(store, other)}, is not used; submitted as it was, that run "
            "goes on from it"
        )
    except TrainFuncError:
        return ""


def _alike(store: Store, name: str, asked: RunRecord) -> RunRecord | None:
    """The record of the run, if source and parameters are all that differs, and it has a checkpoint."""
    try:
        if not store.names(f"{name}/checkpoints") and not store.names(f"{name}/generations"):
            return None
        record = stored(store, name, newest_generation(store, name))
        run = replace(record.run, parameters=asked.run.parameters)
    except TrainFuncError:
        return None
    is_alike = record.wheels == asked.wheels and _name(replace(record, run=run), asked) == _name(asked, asked)
    return record if is_alike and newest_checkpoint(store, record) else None


def _name(record: RunRecord, source: RunRecord) -> str:
    """The name of the run if it had the source of the other."""
    function, sha256 = source.function, source.source_sha256
    return name_of(record.run, function=function, source_sha256=sha256, fingerprints=record.fingerprints)


def _differing(other: RunRecord, asked: RunRecord) -> str:
    was, now = other.run.parameters, asked.run.parameters
    names = [name for name in {**was, **now} if was.get(name) != now.get(name) or (name in was) != (name in now)]
    of_source = ["the lines of its source"] if other.source_sha256 != asked.source_sha256 else []
    return " and ".join([*of_source, *([f"the parameters {listed(names)}"] if names else [])]) or "its packages"
