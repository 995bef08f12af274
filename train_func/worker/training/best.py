"""The best of all evaluations: what loading it at the end needs, and which weights a training has ended with.

transformers' ``best_global_step`` is the step of the best evaluation, whether its weights were saved or not; those that
it loads are of ``best_model_checkpoint``, the newest best one that was saved.
"""

from pathlib import Path

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


def weights_step(trainer: transformers.Trainer) -> int:
    """The step that the weights of transformers' own Trainer are of."""
    loaded = None if trainer.is_in_train else loaded_step(trainer)
    step: int = trainer.state.global_step
    return step if loaded is None else loaded


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
