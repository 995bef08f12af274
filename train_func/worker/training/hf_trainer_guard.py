"""Trainers inside a Session, watched: data that was split before transformers' own is caught before step one."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import transformers
from datasets import Dataset, IterableDataset

from train_func.errors import InvalidInput
from train_func.worker.training import best, evaluation, hf_trainer_loss, hf_trainer_stopping, weights, world
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

    def __init__(
        self, check: Callable[[transformers.Trainer], None], held_out: Callable[[], Dataset | None] = lambda: None
    ) -> None:
        """``check`` is called before a training; what it raises keeps the training from starting. ``held_out`` gives
        the rows whose evaluation counts, whatever eval_dataset a Trainer has."""
        self._check = check
        self._held_out = held_out
        self._ended: list[transformers.Trainer] = []
        self._measured: list[_Measured] = []

    def has_ended(self, trainer: transformers.Trainer) -> bool:
        """Whether the last training came to an end, its last step or one that a callback chose."""
        return any(ended is trainer for ended in self._ended)

    def metrics_of(self, trainer: transformers.Trainer) -> dict[str, Any] | None:
        """Collective: what transformers' own Trainer measures on the held-out rows with the weights it has now.

        Measured now when it has them as eval_dataset, or has measured them before with other weights. None when nobody
        has given them to it; where the session has none, its eval_dataset counts.
        """
        own = [measured for measured in self._measured if measured.trainer is trainer]
        rows = own[-1].rows if own else self._given_to(trainer)
        if rows is None:
            return None
        used = weights.fingerprint(trainer.accelerator.unwrap_model(trainer.model))
        found = world.on_rank_zero(lambda: next((of.metrics for of in reversed(own) if of.weights == used), None))
        return _evaluated(trainer, rows) if found is None else found

    @contextmanager
    def lasts(self) -> Iterator[None]:
        """Until the end of the block."""
        kind = transformers.Trainer
        train, evaluate = kind.train, kind.evaluate

        def watched_train(trainer: transformers.Trainer, *args: Any, **kwargs: Any) -> Any:
            self._check(trainer)
            self._ended = [ended for ended in self._ended if ended is not trainer]
            with hf_trainer_stopping.voted(trainer):
                output = train(trainer, *args, **kwargs)
            if trainer.args.load_best_model_at_end:
                if not isinstance(trainer, Trainer):
                    weights.take_rank_zeros(trainer.accelerator.unwrap_model(trainer.model))
                best.tell(trainer)
            self._ended.append(trainer)
            return output

        def watched_evaluate(
            trainer: transformers.Trainer,
            eval_dataset: Any = None,
            ignore_keys: list[str] | None = None,
            metric_key_prefix: str = "eval",
        ) -> dict[str, float]:
            metrics: dict[str, float] = evaluate(trainer, eval_dataset, ignore_keys, metric_key_prefix)
            rows = _rows_of(trainer, eval_dataset)
            if self._counts(trainer, rows):
                used = weights.fingerprint(trainer.accelerator.unwrap_model(trainer.model))
                self._measured.append(_Measured(trainer, rows, used, _without_prefix(metrics, metric_key_prefix)))
            return metrics

        kind.train, kind.evaluate = watched_train, watched_evaluate
        try:
            yield
        finally:
            kind.train, kind.evaluate = train, evaluate

    def _counts(self, trainer: transformers.Trainer, rows: Any) -> bool:
        """Whether the metrics of ``rows`` are those to publish."""
        held_out = self._held_out()
        return rows is trainer.eval_dataset if held_out is None else evaluation.covering(rows, held_out) is rows

    def _given_to(self, trainer: transformers.Trainer) -> Any:
        """The rows to measure of the trainer's eval_dataset, one data set or a dict of them; None when it has none."""
        sets = trainer.eval_dataset
        parts = [sets, *(sets.values() if isinstance(sets, dict) else [])]
        return next((rows for rows in parts if self._counts(trainer, rows)), None)


@dataclass(frozen=True)
class _Measured:
    """One evaluation by transformers' own Trainer."""

    trainer: transformers.Trainer
    rows: Any
    """One data set or a dict of them."""
    weights: str
    """Fingerprint of those that were measured."""
    metrics: dict[str, Any]


def _rows_of(trainer: transformers.Trainer, given: Any) -> Any:
    """What ``evaluate`` takes ``given`` for, which may name one of several in the trainer's eval_dataset."""
    if given is None:
        return trainer.eval_dataset
    return trainer.eval_dataset[given] if isinstance(given, str) else given


def _evaluated(trainer: transformers.Trainer, rows: Any) -> dict[str, Any]:
    """Collective: a rank that fails on one of several data sets is not waited for on the next."""
    sets = {f"eval_{name}": part for name, part in rows.items()} if isinstance(rows, dict) else {"eval": rows}
    made = [
        world.on_all_ranks(partial(trainer.evaluate, part, metric_key_prefix=prefix)) for prefix, part in sets.items()
    ]
    return _without_prefix({name: value for of in made for name, value in of.items()}, "eval")


def _without_prefix(metrics: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(f"{prefix}_"): value for name, value in metrics.items()}


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
    if faults := value_faults(trainer.args, {"enable_jit_checkpoint": False}) + best.saving_faults(trainer.args):
        raise InvalidInput(faults, cause="code")
    hf_trainer_loss.tell_of_means(trainer)
    if trainer.compute_metrics is not None:
        world.note(
            "whether compute_metrics fails is known at the first evaluation of transformers.Trainer; "
            "train_func.worker.Trainer tries it before the first step"
        )
    rows = trainer.train_dataset
    if isinstance(rows, IterableDataset) and getattr(rows, "_distributed", None) is not None and world.size() > 1:
        _refuse_stock("before that an iterable data set was split by split_dataset_by_node", None)
    if whole is None or not isinstance(rows, Dataset) or ROW_ID not in rows.column_names:
        world.note("the rows given to transformers.Trainer carry no row ids, so their use is not counted")
        return None
    given = row_ids_of(rows)
    with torch.random.fork_rng(devices=[]):
        served = world.on_all_ranks(lambda: served_by(trainer.get_train_dataloader()))
    parts, used = world.gather(given), world.gather(given[served])
    alike = all(np.array_equal(part, given) for part in parts)
    coverage = count(given if alike else whole, used)
    if len(coverage.missing):
        _refuse_stock(_why_missing(trainer, alike, whole, parts), coverage)
    if alike and _is_undealt(trainer, given, used):
        _refuse_stock("its loader does not, so every rank would train on every row", coverage)
    if alike and len(given) < len(whole):
        world.note(f"{len(given)} of the {len(whole)} training rows are used")
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
