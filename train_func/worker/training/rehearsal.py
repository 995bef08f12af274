"""Rehearsal: all that is going to be measured is measured before the first step, of few rows, and forgotten."""

from collections.abc import Mapping
from typing import Any

from datasets import Dataset
from transformers.trainer_callback import TrainerCallback

from train_func.errors import InvalidInput
from train_func.worker.training import evaluation, world
from train_func.worker.training.randomness import undisturbed
from train_func.worker.training.trainer import Trainer


class Rehearsal(TrainerCallback):
    """Once, when a training has begun: the state, the device and the trackers of an evaluation are there by then.

    Collective. Whatever measuring all rows raises keeps the training from its first step, on every rank.
    """

    def __init__(self, trainer: Trainer, published: Mapping[str, Dataset]) -> None:
        """``published``: the sets whose metrics are published; beside them are those that the training evaluates."""
        self._trainer, self._published = trainer, published
        trainer.pop_callback(Rehearsal)
        trainer.add_callback(self)  # behind all others, which have begun then

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        """Raises InvalidInput (cause "code") too when no evaluation has the metric by which the best is chosen."""
        self._trainer.remove_callback(self)
        with undisturbed():
            _rehearse(self._trainer, self._published)


def _rehearse(trainer: Trainer, published: Mapping[str, Dataset]) -> None:
    evaluated = _evaluated(trainer)
    for rows in published.values():
        if not any(rows is of_training for of_training in evaluated.values()):
            _names(trainer, rows, "eval")
    names = {name for prefix, rows in evaluated.items() for name in _names(trainer, rows, prefix)}
    best = trainer.args.metric_for_best_model
    wanted = f"eval_{str(best).removeprefix('eval_')}"
    if best is None or not evaluated or wanted in names:
        return
    names = {name for prefix, rows in evaluated.items() for name in _names(trainer, rows, prefix, whole=True)}
    if wanted not in names:
        _refuse(trainer, names)


def _evaluated(trainer: Trainer) -> dict[str, Any]:
    """The sets that are evaluated while the model trains, by the prefix of their metrics."""
    args, sets = trainer.args, trainer.eval_dataset
    evaluates = args.eval_strategy != "no" or args.save_strategy == "best" or args.load_best_model_at_end
    if sets is None or not evaluates:
        return {}
    return {f"eval_{name}": rows for name, rows in sets.items()} if isinstance(sets, dict) else {"eval": sets}


def _names(trainer: Trainer, rows: Dataset, prefix: str, *, whole: bool = False) -> set[str]:
    """Of the metrics of the batch with the longest rows.

    A metric that cannot be computed of so few, such as one that needs every class, is tried on all rows.
    """
    few = rows if whole else evaluation.longest_batch(trainer, rows)
    try:
        return evaluation.names(trainer, few, prefix)
    except Exception:
        if len(few) == len(rows):
            raise
        return evaluation.names(trainer, rows, prefix)


def _refuse(trainer: Trainer, names: set[str]) -> None:
    known = ", ".join(sorted(name.removeprefix("eval_") for name in names))
    remedy = "name one of these" + (", or give Trainer compute_metrics" if trainer.compute_metrics is None else "")
    fault = f"TrainingArguments(metric_for_best_model={trainer.args.metric_for_best_model!r}): the metrics are {known}"
    if _adds_metrics(trainer):
        world.note(f"{fault}, unless the training's own evaluate or on_evaluate adds it")
    else:
        raise InvalidInput(f"{fault}; {remedy}", cause="code")


def _adds_metrics(trainer: Trainer) -> bool:
    """Whether code of the user's sees the metrics of an evaluation before the best is chosen, and may add to them."""
    if getattr(trainer.evaluate, "__func__", None) is not Trainer.evaluate:
        return True
    own = (of for of in trainer.callback_handler.callbacks if not type(of).__module__.startswith("transformers."))
    return any(getattr(of.on_evaluate, "__func__", None) is not TrainerCallback.on_evaluate for of in own)
