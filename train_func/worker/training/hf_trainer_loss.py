"""The loss of transformers' own Trainer: told that it is a mean where it takes it for a sum divided by all items.

That Trainer hands a count of the step's items to every model whose forward takes ``**kwargs``, and to every
``compute_loss_func``, and believes that they divide by it. Many, BERT's classifiers among them, give a mean all the
same: gradients and losses are then multiplied by accumulation and ranks, in evaluations by ranks.
See https://github.com/huggingface/transformers/issues/47688
"""

import math
from typing import Any

import torch
import transformers
from datasets import IterableDataset

from train_func.worker.training import world
from train_func.worker.training.items import Items


def tell_of_means(trainer: transformers.Trainer) -> None:
    """Collective, before step one. Asks the loss itself: one that does not change with the count is a mean."""
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
        f"the loss of {type(trainer.model).__name__} is a mean, whatever num_items_in_batch is; "
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
