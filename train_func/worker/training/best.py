"""The best of all evaluations: what loading it at the end needs, and which weights a training has ended with.

transformers' ``best_global_step`` is the step of the best evaluation, whether its weights were saved or not; those that
it loads are of ``best_model_checkpoint``, the newest best one that was saved.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

import transformers

from train_func.worker.training import world


def saving_faults(args: transformers.TrainingArguments) -> list[str]:
    """Why the best evaluation may be one whose weights were not saved."""
    if not args.load_best_model_at_end or args.save_strategy == "best" or args.eval_strategy != "steps":
        return []
    if args.save_steps == args.eval_steps:
        return []
    fault = (
        f"TrainingArguments(save_steps={args.save_steps!r}): expected {args.eval_steps!r}, as eval_steps, with "
        "load_best_model_at_end=True, because the best evaluation may fall between two checkpoints, and its weights "
        f"would be lost: set save_steps={args.eval_steps!r} or save_strategy='best'"
    )
    return [fault]


def checkpoint_of(trainer: transformers.Trainer) -> str:
    """The name under which transformers' state keeps that this step has the best weights that were saved."""
    return str(Path(str(trainer.args.output_dir)) / f"checkpoint-{trainer.state.global_step}")


def loaded_step(trainer: transformers.Trainer) -> int | None:
    """The step of the checkpoint that was loaded at the end; None when none was."""
    checkpoint = trainer.state.best_model_checkpoint
    if not trainer.args.load_best_model_at_end or not checkpoint:
        return None
    return int(Path(checkpoint).name.rpartition("-")[2])


def better_before(trainer: transformers.Trainer, metrics: Mapping[str, Any]) -> str:
    """What a person should know where an earlier evaluation was better than the published ``metrics``; mostly empty.

    Those of the training over as many rows are compared, by ``metric_for_best_model`` or else by their loss.
    """
    args, state = trainer.args, trainer.state
    name = str(args.metric_for_best_model or "loss").removeprefix("eval_")
    now = metrics.get(name)
    if args.load_best_model_at_end or not _is_number(now):
        return ""
    earlier = [
        of
        for of in state.log_history
        if 0 < of.get("step", 0) < state.global_step
        and of.get("eval_rows") == metrics.get("rows")
        and _is_number(of.get(f"eval_{name}"))
        and math.isfinite(of[f"eval_{name}"])
    ]
    if not earlier:
        return ""
    sign = -1 if args.metric_for_best_model and args.greater_is_better else 1
    then = min(earlier, key=lambda of: sign * of[f"eval_{name}"])
    value = then[f"eval_{name}"]
    if sign * value >= sign * now or f"{value:.4g}" == f"{now:.4g}":
        return ""
    strategy = "epoch" if args.eval_strategy == "no" else args.eval_strategy.value
    when = f"step {then['step']} (epoch {then.get('epoch', 0):.4g})"
    return (
        f"the evaluation of {when} was better than that of the published weights, of step {state.global_step}: {name} "
        f"{value:.4g}, and {now:.4g} in the end; to publish the best, give session.arguments("
        f"eval_strategy={strategy!r}, save_strategy={strategy!r}, load_best_model_at_end=True, "
        f"metric_for_best_model={name!r})"
    )


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def tell(trainer: transformers.Trainer) -> None:
    """Says which weights a training with load_best_model_at_end has ended with."""
    loaded, state = loaded_step(trainer), trainer.state
    if loaded is None:
        world.note(
            "load_best_model_at_end=True had no checkpoint of a best evaluation to load: the weights are those "
            f"of step {state.global_step}, the last one"
        )
    elif loaded == state.best_global_step:
        world.note(f"the weights are those of step {loaded} again, the best of all evaluations")
    else:
        world.note(
            f"the weights are those of step {loaded} again, the best evaluation with a checkpoint; that of "
            f"step {state.best_global_step} was better"
        )
