"""The models in place: which run's model stands under a name, moved by compare-and-swap, and the copy of its files.

The record of a name is swapped first, so that of two clients one wins; then the files are copied, the manifest last.
A client that comes to an unfinished copy finishes it. What is fetched under a name is read where the run has it. A name
that is withdrawn keeps its record, so that it goes on counting: no client that has read an earlier one can swap it.
"""

import re
from dataclasses import replace

from train_func.client.comparison import Comparison, Measurement
from train_func.client.in_place_record import InPlace, following, withdrawn
from train_func.client.run_names import run_names
from train_func.client.stored_run import published_result
from train_func.codec import OtherFormat
from train_func.errors import InvalidInput, StorageFailed
from train_func.fields import brief
from train_func.layout import MODEL_MANIFEST, MODELS, SUMS, ModelKeys, RunKeys
from train_func.records import RunRecord
from train_func.result import Result, copy_model, is_copied
from train_func.run import NAME
from train_func.storage import Store, find
from train_func.text import listed

TRIES = 10  # to swap, while other clients do
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def in_place(store: Store, name: str) -> InPlace | None:
    """What is in place under ``name``; None where nothing is, or it can be no such name."""
    held = newest_of(store, name)
    return held if held and held.run else None


def newest_of(store: Store, name: str) -> InPlace | None:
    """The newest record of a name, also of one that was withdrawn; None where nothing was ever in place."""
    return _newest(store, name)[0] if _NAME.fullmatch(name) else None


def names_in(store: Store) -> list[str]:
    """The names under which a model is, or was, in place."""
    return [folder.removesuffix("/") for folder in store.names(MODELS) if folder.endswith("/")]


def all_in_place(store: Store) -> tuple[list[InPlace], list[str]]:
    """What is in place under all names, and what is to be said of those that cannot be read."""
    found, notes = [], []
    for name in names_in(store):
        try:
            found += [held] if (held := in_place(store, name)) else []
        except StorageFailed as failure:
            if failure.reason != "damaged":
                raise
            notes.append(str(failure))
    return found, notes


def names_of(store: Store, run: str) -> list[str]:
    """The names under which a model of this run is in place."""
    return [name for name in names_in(store) if (held := in_place(store, name)) and held.run == run]


def promote(store: Store, record: RunRecord, name: str, *, better: str | None = None) -> tuple[bool, str]:
    """Puts the model of a run in place under ``name``; whether it is now, and why, in words.

    Args:
        store: of the run.
        record: of the run, which has published a model.
        name: small letters, digits and hyphens.
        better: only where the run is better in this metric than the one in place, on the same held-out rows; behind a
            minus, as in "-loss", where a lower value is better.

    Raises:
        InvalidInput: no such name, metric or model, the name is how that of another run is shortened, or what
            is promoted, or the two, cannot be compared; nothing was changed.
        StorageFailed: reason "conflict" when another client has put another model in place meanwhile; or the store's.
    """
    check_name(name)
    comparison = Comparison.by(better) if better is not None else None
    result = _published(store, record)
    check_shortens_no_other(store, name, record.name)
    key = ModelKeys(name).in_place
    for _ in range(TRIES):
        newest, version = _newest(store, name, or_damaged=better is None)
        before = newest if newest and newest.run else None
        if before and (before.run, before.generation) == (record.name, record.generation):
            if comparison:
                comparison.check(Measurement.of(record, result))
            complete(store, name)
            return True, f"its model was in place as {name!r} already"
        if comparison and (why := _no_better(comparison, Measurement.of(record, result), before)):
            return False, why
        now = following(newest, record, result, name)
        try:
            swapped = store.put(key, now.to_json(), if_absent=version is None, if_version=version)
        except StorageFailed as failure:
            if failure.reason != "conflict":
                raise
            if better is None:
                break
            continue
        if find(store, record.keys.result) is None:
            _put_back(store, newest or withdrawn(now), now.number + 1, swapped)
            raise InvalidInput(f"{record.name} was removed meanwhile; what is in place as {name!r} is what was before")
        complete(store, name)
        return True, f"its model is in place as {name!r}" + (f", where that of {before.run} was" if before else "")
    raise _overtaken(f"{store.address}/{key}", f"promote {record.name} again")


def withdraw(store: Store, name: str) -> str:
    """Takes away what is in place under ``name``, with the files under it; the run keeps its model.

    Returns:
        The run whose model it was; empty where it was withdrawn before.

    Raises:
        InvalidInput: nothing was ever in place under that name.
        StorageFailed: reason "conflict" when another client has put a model in place meanwhile; or the store's.
    """
    newest, version = _newest(store, name) if isinstance(name, str) and _NAME.fullmatch(name) else (None, None)
    if newest is None:
        there = listed([other for other in names_in(store) if in_place(store, other)], show=repr)
        raise InvalidInput(f"withdraw({brief(name)}): nothing is in place under that name; {there or 'no model'} is")
    if newest.run:
        key = newest.keys.in_place
        try:
            store.put(key, withdrawn(newest).to_json(), if_version=version)
        except StorageFailed as failure:
            if failure.reason != "conflict":
                raise
            raise _overtaken(f"{store.address}/{key}", f"withdraw {name} again") from None
    complete(store, name)
    return newest.run


def complete(store: Store, name: str) -> None:
    """Makes the files under ``name`` those of what is in place, and none of a name that was withdrawn.

    Raises StorageFailed.
    """
    held, done = _newest(store, name)[0], None
    while held and held != done:
        if held.run:
            _copy(store, held, is_certain=done is not None)
        else:
            _clear(store, held.keys.model)
        held, done = _newest(store, name)[0], held


def _newest(store: Store, name: str, *, or_damaged: bool = False) -> tuple[InPlace | None, str | None]:
    """The record of a name, and its version; with ``or_damaged`` no record, and the version, of one that is damaged."""
    found = find(store, key := ModelKeys(name).in_place)
    if found is None:
        return None, None
    try:
        return InPlace.from_json(found.data, f"{store.address}/{key}"), found.version
    except OtherFormat:
        raise
    except StorageFailed:
        if or_damaged:
            return None, found.version
        raise


def _copy(store: Store, held: InPlace, *, is_certain: bool) -> None:
    """``is_certain``: also where it seems done: what was copied before may lie over files of this one."""
    keys = RunKeys(held.run, held.generation)
    result = store.get(keys.result).data
    if is_certain or not is_copied(store, held.keys.model, result):
        of = f"attempt {held.attempt} of {held.run}"
        copy_model(store, keys.attempt(held.attempt).model, held.keys.model, result, of)


def _clear(store: Store, folder: str) -> None:
    """The manifest and the sums first: without them the folder is no model."""
    for name in (MODEL_MANIFEST, SUMS):
        store.delete(f"{folder}/{name}")
    for entry in store.list(f"{folder}/"):
        store.delete(entry.key)


def _overtaken(record: str, again: str) -> StorageFailed:
    return StorageFailed(
        f"{record} was changed by another client meanwhile, and nothing by this one: look at what is in place, and "
        f"{again}",
        reason="conflict",
    )


def check_name(name: str) -> None:
    """Raises InvalidInput where no model can be put in place under that name."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or NAME.fullmatch(name):
        raise InvalidInput(
            f"promote({brief(name)}): at most 63 small letters, digits and hyphens are expected, such as 'reviews', "
            "and not the name of a run"
        )


def check_shortens_no_other(store: Store, name: str, own: str) -> None:
    """Raises InvalidInput where ``attach(name)`` finds a run other than ``own`` by the words that its name begins with.

    It would give the model in place from then on, and say nothing. A name that is in place already gives that now.
    """
    newest, version = _newest(store, name, or_damaged=True)
    if newest.run if newest else version is not None:
        return
    found = [run for run in {own, *run_names(store)} if run.startswith(name)]
    if len(found) != 1 or own in found:  # of several it finds none
        return
    (other,) = found
    if other[len(name)] == "-" or len(name) > other.rindex("-"):
        raise InvalidInput(
            f"promote({name!r}): attach({name!r}) finds the run {other} by the beginning of its name, and would find "
            "this model instead: give a name with which no other run begins"
        )


def _published(store: Store, record: RunRecord) -> Result:
    result = published_result(store, record)
    if result is None or not result.files:
        raise InvalidInput(
            f"{record.name} has published no model that could be put in place: wait() until it has succeeded, or "
            "publish one with session.publish(...)"
        )
    return result


def _put_back(store: Store, before: InPlace, number: int, version: str) -> None:
    """Replaces a record of this version by the one before it; another client that was quicker knows what it does."""
    try:
        store.put(before.keys.in_place, replace(before, number=number).to_json(), if_version=version)
    except StorageFailed as failure:
        if failure.reason != "conflict":
            raise
    complete(store, before.name)


def _no_better(comparison: Comparison, new: Measurement, before: InPlace | None) -> str:
    """Why the model of ``before`` stays; empty where the new one is better. Raises InvalidInput."""
    if before is None:
        comparison.check(new)  # those to come are compared with it
        return ""
    old, metric = before.measured, comparison.metric
    comparison.check(new, old, before.name)
    if comparison.is_better(new, old):
        return ""
    now, was = new.metrics[metric], old.metrics[metric]
    return f"{metric} {now:.4g} is no better than {was:.4g} of {before.run}, which stays in place as {before.name!r}"
