"""transformers' own Trainer inside a Session: watched, so that data that was split before is caught before step one."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import transformers
from datasets import Dataset, IterableDataset

from train_func.errors import InvalidInput
from train_func.worker.training import world
from train_func.worker.training.audit import pattern_of, served_by
from train_func.worker.training.coverage import Coverage, RowIds, count
from train_func.worker.training.plan import CALL, ROW_ID, row_ids_of
from train_func.worker.training.trainer import Trainer


@contextmanager
def watched(check: Callable[[transformers.Trainer], None]) -> Iterator[None]:
    """While it lasts, ``check`` sees every transformers.Trainer that is no Trainer of ours before it trains.

    Its class is changed for so long because a callback is not told the data set, and a user's function that was
    written for transformers makes the Trainer itself.
    """
    original = transformers.Trainer.train

    def train(self: transformers.Trainer, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self, Trainer):
            check(self)
        return original(self, *args, **kwargs)

    transformers.Trainer.train = train
    try:
        yield
    finally:
        transformers.Trainer.train = original


def check_stock_trainer(trainer: transformers.Trainer, whole: RowIds | None) -> Coverage | None:
    """Collective, before step one of transformers' own Trainer: an epoch serves every row.

    That Trainer deals what it is given over the ranks by itself, repeating a few rows so that ranks get equally many;
    given a part, it trains on a part of the part. ``whole``: ids of all training rows, None when nobody asked for
    them. Returns None where rows cannot be counted.

    Raises:
        InvalidInput: (cause "code", on every rank) naming the split that is too many.
    """
    if trainer.args.world_size != world.size():
        raise InvalidInput(
            f"transformers.Trainer sees {trainer.args.world_size} of {world.size()} ranks: each would train on its own "
            "and share no gradients. Pass TrainingArguments(**session.arguments, ...), which says use_cpu",
            cause="code",
        )
    rows = trainer.train_dataset
    if isinstance(rows, IterableDataset) and getattr(rows, "_distributed", None) is not None and world.size() > 1:
        _refuse_stock("before that an iterable data set was split by split_dataset_by_node", None)
    if whole is None or not isinstance(rows, Dataset) or ROW_ID not in rows.column_names:
        world.say("note: the rows given to transformers.Trainer carry no row ids, so their use is not counted")
        return None
    given = row_ids_of(rows)
    with torch.random.fork_rng(devices=[]):
        served = world.together(lambda: served_by(trainer.get_train_dataloader()))
    parts, used = world.gather(given), world.gather(given[served])
    alike = all(np.array_equal(part, given) for part in parts)
    coverage = count(given if alike else whole, used)
    if len(coverage.missing):
        _refuse_stock(_why_missing(trainer, alike, whole, parts), coverage)
    if alike and _is_undealt(trainer, given, used):
        _refuse_stock("its loader does not, so every rank would train on every row", coverage)
    if alike and len(given) < len(whole):
        world.say(f"note: {len(given)} of the {len(whole)} training rows are used")
    return coverage


def _is_undealt(trainer: transformers.Trainer, given: RowIds, used: Sequence[RowIds]) -> bool:
    """Whether ranks repeat each other's rows, and not only those few that even their batches."""
    if world.size() == 1 or len(given) <= world.size() * trainer.args.train_batch_size:
        return False
    return all(len(np.unique(part)) == len(given) for part in used)


def _why_missing(trainer: transformers.Trainer, alike: bool, whole: RowIds, parts: Sequence[RowIds]) -> str:
    if not alike:
        return f"before that they were split: {pattern_of(whole, parts)}"
    if trainer.args.dataloader_drop_last:
        return "dataloader_drop_last=True leaves out the last, smaller batch"
    return "its loader leaves rows out, though every rank was given all of them"


def _refuse_stock(reason: str, coverage: Coverage | None) -> None:
    counted = f" An epoch would use {coverage}." if coverage else ""
    raise InvalidInput(
        f"transformers.Trainer deals its rows over the ranks by itself, and {reason}.{counted} Give it all rows on "
        f"every rank, without a split; or `from train_func.worker import Trainer` and train_dataset={CALL}",
        cause="code",
    )
