"""Trainers inside a Session, watched: data that was split before transformers' own is caught before step one."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import transformers
from datasets import Dataset, IterableDataset

from train_func.errors import InvalidInput
from train_func.worker.training import stock_loss, weights, world
from train_func.worker.training.arguments import value_faults
from train_func.worker.training.audit import pattern_of, served_by
from train_func.worker.training.coverage import Coverage, RowIds, count
from train_func.worker.training.plan import CALL, ROW_ID, row_ids_of
from train_func.worker.training.trainer import Trainer


class Watch:
    """Sees every Trainer while it lasts: before it trains, when its training has ended, and what it has measured.

    transformers' class is changed for so long because a callback is not told the data set, and a user's function that
    was written for transformers makes the Trainer itself.
    """

    def __init__(self, check: Callable[[transformers.Trainer], None]) -> None:
        """``check`` is called before a training; what it raises keeps the training from starting."""
        self._check = check
        self._ended: list[transformers.Trainer] = []
        self._measured: list[tuple[transformers.Trainer, str, dict[str, Any]]] = []

    def has_ended(self, trainer: transformers.Trainer) -> bool:
        """Whether the last training came to an end, its last step or one that a callback chose."""
        return any(ended is trainer for ended in self._ended)

    def metrics_of(self, trainer: transformers.Trainer) -> dict[str, Any]:
        """Collective: what transformers' own Trainer measures on its eval_dataset, with the weights it has now.

        Empty when it never measured anything.
        """
        used = weights.fingerprint(trainer.accelerator.unwrap_model(trainer.model))
        own = [(of, metrics) for by, of, metrics in self._measured if by is trainer]
        found = world.on_rank_zero(lambda: next((metrics for of, metrics in reversed(own) if of == used), None))
        if found is None and own:
            found = trainer.evaluate()
        return {name.removeprefix("eval_"): value for name, value in (found or {}).items()}

    @contextmanager
    def lasts(self) -> Iterator[None]:
        """Until the end of the block."""
        kind = transformers.Trainer
        train, evaluate = kind.train, kind.evaluate

        def watched_train(trainer: transformers.Trainer, *args: Any, **kwargs: Any) -> Any:
            self._check(trainer)
            self._ended = [ended for ended in self._ended if ended is not trainer]
            output = train(trainer, *args, **kwargs)
            if trainer.args.load_best_model_at_end and not isinstance(trainer, Trainer):
                weights.take_rank_zeros(trainer.accelerator.unwrap_model(trainer.model))
            self._ended.append(trainer)
            return output

        def watched_evaluate(trainer: transformers.Trainer, eval_dataset: Any = None, *args: Any, **kwargs: Any) -> Any:
            metrics = evaluate(trainer, eval_dataset, *args, **kwargs)
            if eval_dataset is None or eval_dataset is trainer.eval_dataset:
                used = weights.fingerprint(trainer.accelerator.unwrap_model(trainer.model))
                self._measured.append((trainer, used, dict(metrics)))
            return metrics

        kind.train, kind.evaluate = watched_train, watched_evaluate
        try:
            yield
        finally:
            kind.train, kind.evaluate = train, evaluate


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
    if faults := value_faults(trainer.args, {"enable_jit_checkpoint": False}):
        raise InvalidInput(faults, cause="code")
    stock_loss.tell_of_means(trainer)
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
