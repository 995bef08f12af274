"""The models in place: which run's model stands under a name, and the copy of its files there.

A promotion first copies the model to a folder of its own, and then writes its record under the next number: of two
clients one gets the number, and the highest counts. So a promotion that fails or dies changes nothing of what is in
place. What is fetched under a name is read where the run has it. A withdrawal is a promotion of no run.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from train_func.client.backend import Backend, backend_or_default
from train_func.client.model.fetch import fetched_folders, remove_fetched
from train_func.client.stored_run import published_result
from train_func.errors import InvalidInput, StorageFailed
from train_func.fields import brief
from train_func.run import NAME
from train_func.storage import Store, open_store, put_new
from train_func.text import listed, shown
from train_func.wire import events
from train_func.wire.codec import Record
from train_func.wire.layout import MODEL_MANIFEST, MODELS, SUMS, ModelKeys, RunKeys, newest_number
from train_func.wire.records import RunRecord
from train_func.wire.result import Result, copy_model, is_copied

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@dataclass(frozen=True, kw_only=True)
class Promotion(Record):
    """Which model is in place under ``name``."""

    REMEDY = "Use the version that promoted it; or delete the record, and the one before counts again"

    name: str
    number: int
    run: str = ""
    """Empty where the name was withdrawn."""
    generation: int = 0
    metrics: Mapping[str, float]
    held_out_sha256: str = ""
    """The hash of the rows that the metrics were measured on; empty where that is not known."""
    promoted: str
    """When, ISO, UTC; or when it was withdrawn."""

    @property
    def folder(self) -> str:
        """The key of the folder of its files."""
        return ModelKeys(self.name).copy(self.number, RunKeys(self.run, self.generation).job_name)

    def address(self, store: Store) -> str:
        """Returns where its files are, as part of a sentence."""
        return f"with its files in {store.address}/{self.folder}/"


class Metric(NamedTuple):
    """What two models are compared by."""

    name: str
    is_greater_better: bool

    @classmethod
    def of(cls, better: str) -> "Metric":
        """``better``: the name of the metric, behind a minus where a lower value is better. Raises InvalidInput."""
        name = better.removeprefix("-")
        if not name or (better.endswith("loss") and name == better):
            greater = "it would promote the model with the greater loss; " if name else ""
            raise InvalidInput(
                f"better={brief(better)}: {greater}the name of a metric is expected, with a minus where a lower value "
                'is better, as in "accuracy" and "-loss"'
            )
        return cls(name, name == better)

    def check(self, new: Promotion, old: Promotion | None) -> None:
        """Raises InvalidInput unless the new model, and the old one, have the metric, of the same known rows."""
        models = [new, *([old] if old else [])]
        if missing := [model for model in models if self.name not in model.metrics]:
            known = "; ".join(f"{model.run} has {listed(sorted(model.metrics)) or 'none'}" for model in missing)
            raise InvalidInput(f"better={self.name!r}: a metric of each run that is compared is expected; {known}")
        if unknown := [model.run for model in models if not model.held_out_sha256]:
            both = " and ".join(model.run for model in models)
            why = f"of {both} nothing tells which rows {' and '.join(unknown)} held out"
        elif len({model.held_out_sha256 for model in models}) > 1:
            why = f"{new.run} and {models[-1].run}, which is in place, were measured on different held-out rows"
        else:
            return
        raise InvalidInput(
            f"better={self.name!r}: {why}. Hold the same rows out in each run, with held_out=... of a file in their "
            "task, or promote without better",
            cause="data",
        )


def in_place(store: Store, name: str) -> Promotion | None:
    """Returns what is in place under ``name``; None where nothing is, or it can be no such name."""
    newest = _newest(store, name) if isinstance(name, str) and _NAME.fullmatch(name) else None
    return newest if newest and newest.run else None


def all_in_place(store: Store, damaged: list[str] | None = None) -> list[Promotion]:
    """Returns what is in place under all names.

    Args:
        store: that has the models.
        damaged: takes why a record cannot be read, which hides only itself; without it, that raises StorageFailed.
    """
    records = []
    for folder in store.names(MODELS):
        try:
            records.append(in_place(store, folder.removesuffix("/")))
        except StorageFailed as failure:
            if damaged is None or failure.reason != "damaged":
                raise
            damaged.append(str(failure))
    return [record for record in records if record]


def promote(store: Store, record: RunRecord, name: str, *, better: str | None = None) -> tuple[bool, str]:
    """Does what ``Job.promote`` says; returns whether the model is in place now, and why, in words."""
    check_name(name)
    metric = Metric.of(better) if better is not None else None
    result = published_result(store, record.keys)
    if result is None or not result.files:
        raise InvalidInput(
            f"{record.name} has published no model that could be put in place: wait() until it has succeeded, or "
            "publish one with session.publish(...)"
        )
    newest = _newest(store, name)
    before = newest if newest and newest.run else None
    metrics = {
        key: value
        for key, value in result.values.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }
    now = Promotion(
        name=name,
        number=newest.number + 1 if newest else 1,
        run=record.name,
        generation=record.generation,
        metrics=metrics,
        held_out_sha256=record.held_out_sha256,
        promoted=events.now(),
    )
    is_there = before is not None and (before.run, before.generation) == (now.run, now.generation)
    if metric:
        metric.check(now, None if is_there else before)
    if before and is_there:
        _copy(store, before, result)
        _delete_others(store, name)
        return True, f"its model was in place as {name!r} already, {before.address(store)}"
    if metric and before:
        new, old = now.metrics[metric.name], before.metrics[metric.name]
        if not (new > old if metric.is_greater_better else new < old):
            stays = f"{before.run}, which stays in place as {name!r}"
            return False, f"{metric.name} {new:.4g} is no better than {old:.4g} of {stays}"
    _copy(store, now, result)
    _put(store, now)
    place = f"where that of {before.run} was, " if before else ""
    return True, f"its model is in place as {name!r}, {place}{now.address(store)}"


def withdraw(name: str, *, on: Backend | None = None) -> None:
    """Takes the model in place under ``name`` away, with its files. The name leads to no run then.

    What ``fetch()`` and ``load()`` keep of it on this machine goes too, unless it was changed. The run keeps its model,
    and can be promoted again or removed.

    Args:
        name: such as ``"reviews"``.
        on: the backend whose store has it, ``Local()`` by default.

    Raises:
        InvalidInput: nothing was ever in place under that name; those there are are listed.
        StorageFailed: reason "conflict" when another client was quicker; or the store's own failure.
    """
    run = vacate(open_store(backend_or_default(on).store_address()), name)
    message = f"the model of {run} is in place no more; the run keeps it" if run else "was withdrawn before"
    print(shown(f"{name}: {message}"), flush=True)


def vacate(store: Store, name: str) -> str:
    """Withdraws a name, as ``withdraw`` does; returns the run whose model it was, "" if it was withdrawn before."""
    newest = _newest(store, name) if isinstance(name, str) and _NAME.fullmatch(name) else None
    if newest is None:
        names = listed([record.name for record in all_in_place(store)], show=repr)
        raise InvalidInput(f"withdraw({brief(name)}): nothing is in place under that name; {names or 'no model'} is")
    if newest.run:
        _put(store, Promotion(name=name, number=newest.number + 1, metrics={}, promoted=events.now()))
    else:
        _delete_others(store, name)
    for folder in fetched_folders(name):
        remove_fetched(folder)
    return newest.run


def check_name(name: str) -> None:
    """Raises InvalidInput where no model can be put in place under that name."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or NAME.fullmatch(name):
        raise InvalidInput(
            f"promote({brief(name)}): at most 63 small letters, digits and hyphens are expected, such as 'reviews', "
            "and not the name of a run"
        )


def _newest(store: Store, name: str) -> Promotion | None:
    keys = ModelKeys(name)
    number = newest_number(store.names(keys.promotions))
    key = keys.promotion(number)
    return Promotion.from_json(store.get(key).data, f"{store.address}/{key}") if number else None


def _copy(store: Store, promotion: Promotion, result: Result) -> None:
    """Makes the folder of a promotion the model of its run, unless it is that already."""
    if not is_copied(store, promotion.folder, result.data):
        source = RunKeys(promotion.run, promotion.generation).attempt(result.attempt).model
        copy_model(store, source, promotion.folder, result.data, f"attempt {result.attempt} of {promotion.run}")


def _put(store: Store, promotion: Promotion) -> None:
    key = ModelKeys(promotion.name).promotion(promotion.number)
    is_first = put_new(store, key, promotion.to_json())
    _delete_others(store, promotion.name)
    if not is_first:
        raise StorageFailed(
            f"what is in place as {promotion.name!r} in {store.address} was changed by another client meanwhile, and "
            "nothing by this one: look at what is in place, and try again",
            reason="conflict",
        )


def _delete_others(store: Store, name: str) -> None:
    """Deletes the copies that no record leads to any more; one for a later number may still be on its way."""
    newest, keys = _newest(store, name), ModelKeys(name)
    for folder in store.names(keys.prefix):
        number = folder.partition("-")[0]
        copy = f"{keys.prefix}/{folder.removesuffix('/')}"
        if newest and number.isdecimal() and int(number) <= newest.number and copy != newest.folder:
            store.delete(f"{copy}/{MODEL_MANIFEST}", f"{copy}/{SUMS}")  # without them it is no model
            store.delete(*(entry.key for entry in store.list(f"{copy}/")))
