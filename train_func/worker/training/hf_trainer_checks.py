"""Checks of transformers' own Trainer before step one: an epoch serves every row, and its loss is what it believes.

That Trainer hands a count of the step's items to every model whose forward takes ``**kwargs``, and to every
``compute_loss_func``, and believes that they divide by it. Many, BERT's classifiers among them, return a mean all the
same: gradients and losses are then multiplied by accumulation and ranks, in evaluations by ranks.
See https://github.com/huggingface/transformers/issues/47688
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import transformers
from datasets import Dataset, IterableDataset

from train_func.errors import InvalidInput
from train_func.worker.training import best, world
from train_func.worker.training.arguments import value_faults
from train_func.worker.training.audit import Coverage, RowIds, count, pattern_of, served_by
from train_func.worker.training.plan import CALL, ROW_ID, row_ids_of
from train_func.worker.training.weighing import Items


def check_stock_trainer(trainer: transformers.Trainer, whole: RowIds | None) -> Coverage | None:
    """Collective, before step one of transformers' own Trainer: checks that an epoch serves every row.

    That Trainer distributes its rows over the ranks by itself, repeating a few so that ranks get equally many; given a
    part, it trains on a part of the part. ``whole``: ids of all training rows, None when the function has not loaded
    them. Returns None where rows cannot be counted.

    Raises:
        InvalidInput: (cause "code", on every rank) naming the split that is too many.
    """
    if trainer.args.world_size != world.size():
        raise InvalidInput(
            f"transformers.Trainer sees {trainer.args.world_size} of {world.size()} ranks: each would train on its own "
            "and share no gradients. Pass TrainingArguments(**session.arguments(...)), which says use_cpu",
            cause="code",
        )
    if faults := value_faults(trainer.args, {"enable_jit_checkpoint": False}) + best.saving_faults(trainer.args):
        raise InvalidInput(faults, cause="code")
    _tell_of_means(trainer)
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


def _tell_of_means(trainer: transformers.Trainer) -> None:
    """Collective: computes the loss with two counts; one that does not change is a mean, and the Trainer is told so."""
    if trainer.args.gradient_accumulation_steps * world.size() == 1:
        return  # nothing to multiply by
    if not trainer.model_accepts_loss_kwargs and trainer.compute_loss_func is None:
        return  # transformers takes the loss for a mean
    found = world.gather(_is_mean(trainer))
    if None in found:
        world.note(
            "it could not be tried whether the loss is a sum divided by num_items_in_batch, as "
            "transformers.Trainer believes; a mean would be multiplied by gradient_accumulation_steps and ranks"
        )
    if not all(found):
        return
    if trainer.loss_is_scaled_for_ga is None:  # a subclass may have said what it is
        trainer.loss_is_scaled_for_ga = False
    trainer.args.average_tokens_across_devices = False
    world.note(
        f"the loss of {type(trainer.model).__name__} is a mean that does not depend on num_items_in_batch; "
        "transformers.Trainer is told so, or it would multiply it by gradient_accumulation_steps and ranks"
    )


def _is_mean(trainer: transformers.Trainer) -> bool | None:
    """None when a few rows do not tell."""
    model: Any = trainer.model
    was_training, devices = model.training, [torch.cuda.current_device()] if torch.cuda.is_available() else []
    try:
        with torch.random.fork_rng(devices=devices), torch.no_grad():
            model.eval()
            inputs = _first_inputs(trainer)
            one, other = (_loss(trainer, inputs, items) for items in (1.0, 2.0))
    except Exception:  # training will meet it too, and say it better
        return None
    finally:
        model.train(was_training)
    return one == other if math.isfinite(one) and one else None


def _first_inputs(trainer: transformers.Trainer) -> Any:
    rows: Any = trainer.train_dataset
    num_rows = trainer.args.per_device_train_batch_size
    if isinstance(rows, IterableDataset):
        features = list(rows.take(num_rows))
    else:
        features = [rows[position] for position in range(min(num_rows, len(rows)))]
    collator: Any = trainer._get_collator_with_removed_columns(trainer.data_collator)
    return Items().with_labels(trainer._prepare_inputs(collator(features)))


def _loss(trainer: transformers.Trainer, inputs: Any, items: float) -> float:
    torch.manual_seed(0)
    count = torch.tensor(items, device=trainer.args.device)
    loss: torch.Tensor = trainer.compute_loss(trainer.model, {**inputs}, num_items_in_batch=count)
    return float(loss)
