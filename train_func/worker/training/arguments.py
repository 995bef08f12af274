"""Arguments: what the session gives to TrainingArguments, and what no TrainingArguments may say otherwise."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

from train_func.errors import InvalidInput
from train_func.records import Numerics
from train_func.run import Run
from train_func.worker.training import world
from train_func.worker.training.plan import PlanFacts

# Decided elsewhere, and why; a value that says the same is no fault.
DECIDED = {
    "output_dir": "it is a folder of this rank, which the session makes and removes; what is published is kept",
    "seed": "set seed of the Run",
    "use_cpu": "the machine decides it",
    "ddp_backend": "the machine decides it",
    "per_device_train_batch_size": "the plan fixes the batches: set micro_batch_size of the Run",
    "gradient_accumulation_steps": "it follows from batch_size and micro_batch_size",
    "num_train_epochs": "the Run and its plan have that number: set epochs of the Run, and pass "
    "TrainingArguments(**session.arguments()), which carries it",
    "max_steps": "the plan has whole epochs: set epochs of the Run, or samples of its task",
    "dataloader_drop_last": "every row is used",
    "auto_find_batch_size": "the plan fixes the batches: set micro_batch_size of the Run",
    "train_sampling_strategy": "the plan fixes the order",
    "ignore_data_skip": "a training that goes on knows which rows come next",
    "save_total_limit": "two checkpoints and the best weights are kept until the training is published",
    "save_only_model": "a training goes on with its optimizer, its schedule and the place in its plan",
    "enable_jit_checkpoint": "it lets a training that a signal has stopped look as if it had ended",
}
# What they must be in every training on a plan.
ALWAYS: dict[str, Any] = {
    "max_steps": -1,
    "dataloader_drop_last": False,
    "auto_find_batch_size": False,
    "train_sampling_strategy": "random",
    "ignore_data_skip": False,
    "enable_jit_checkpoint": False,
    "save_total_limit": None,
    "save_only_model": False,
}
# With a tracker, the training loss is logged about a hundred times.
TRACKED = {"logging_strategy": "steps", "logging_steps": 0.01}


def made(
    output_dir: Path, run: Run, numerics: Numerics, own: Mapping[str, Any], *, is_launched: bool
) -> dict[str, Any]:
    """Those of a session, and ``own``, which replace those of the same name.

    Args:
        output_dir: folder of this rank.
        run: decides epochs, learning rate and seed.
        numerics: of the attempt.
        own: what the function adds.
        is_launched: by a launcher, so that there are ranks to meet.

    Raises:
        InvalidInput: (cause "code") naming all of ``own`` that the run, the plan or the machine decides.
    """
    has_gpu = torch.cuda.is_available()
    given = {
        "output_dir": str(output_dir),
        "seed": run.seed,
        "num_train_epochs": run.epochs,
        "learning_rate": run.learning_rate,
        "use_cpu": not has_gpu,
        "bf16": numerics.precision == "bf16",
        "ddp_backend": torch.distributed.get_backend() if has_gpu and is_launched else None,
        "dataloader_pin_memory": has_gpu,
        "per_device_train_batch_size": numerics.micro_batch_size,
        "per_device_eval_batch_size": 4 * numerics.micro_batch_size,
        "gradient_accumulation_steps": math.ceil(numerics.num_micro_batches / world.size()),
        "report_to": "none",
        "logging_strategy": "no",
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    if faults := _faults(own, {**given, **ALWAYS}):
        raise InvalidInput(faults, cause="code")
    tracked = TRACKED if own.get("report_to", "none") not in ("none", [], ["none"]) else {}
    asked = {"logging_strategy": "steps"} if "logging_steps" in own else {}
    return {**given, **tracked, **asked, **own}


def logging_steps_of(args: transformers.TrainingArguments, num_steps: int) -> int:
    """Every how many steps ``args`` has the loss logged; 0 where it says none."""
    if args.logging_strategy != "steps":
        return 0
    share: float = args.logging_steps  # below 1: of all steps
    return math.ceil(num_steps * share if share < 1 else share)


def learning_rate_note(trainer: transformers.Trainer, run: Run) -> str | None:
    """Says that the training has another learning rate than its Run, if it has."""
    rate = trainer.args.learning_rate
    if trainer.optimizer is not None or rate == run.learning_rate:  # an optimizer has its own
        return None
    return (
        f"the training has learning_rate={rate:g}, and its Run, which is published with the model, "
        f"{run.learning_rate:g}: TrainingArguments(**session.arguments()) carries that of the Run"
    )


def fitted(args: transformers.TrainingArguments | None) -> transformers.TrainingArguments:
    """``args``, changed so that transformers leaves to the plan and its weights what they do.

    Raises:
        InvalidInput: (cause "code") when there are none: transformers would make some that know nothing of the run.
    """
    if args is None:
        raise InvalidInput(
            "Trainer was given no args; transformers would make some with an output folder, epochs, a learning rate "
            "and a seed of its own: pass args=TrainingArguments(**session.arguments()), which has those of the run",
            cause="code",
        )
    args.average_tokens_across_devices = False  # the weights do that
    if args.n_gpu > 1:
        args._n_gpu = 1  # one process that sees several GPUs: transformers would copy the model onto each
    return args


def argument_faults(args: transformers.TrainingArguments, facts: PlanFacts) -> list[str]:
    """What in ``args`` does not fit the plan that is to be trained on."""
    wanted = {
        **ALWAYS,
        "num_train_epochs": facts.num_epochs,
        "gradient_accumulation_steps": facts.accumulation,
    }
    faults = _value_faults(args, wanted)
    decided = {"seed": facts.seed, "per_device_train_batch_size": facts.micro_batch_size}
    defaults = {field.name: field.default for field in dataclasses.fields(args)}
    # A default was not chosen by anybody.
    faults += _value_faults(args, {name: of for name, of in decided.items() if getattr(args, name) != defaults[name]})
    if not args.world_size == world.size() == facts.world_size:
        faults.append(
            f"transformers sees {args.world_size} ranks, the launcher started {world.size()}, and the plan was made "
            f"for {facts.world_size}: pass TrainingArguments(**session.arguments(...)), which says use_cpu, and a plan "
            "of this session"
        )
    return faults


def _value_faults(args: transformers.TrainingArguments, wanted: Mapping[str, Any]) -> list[str]:
    """What in ``args`` is not as it is decided."""
    return _faults({name: getattr(args, name) for name in wanted}, wanted)


def _faults(given: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    return [
        f"TrainingArguments({name}={given[name]!r}): expected {wanted[name]!r}, because {why}"
        for name, why in DECIDED.items()
        if name in given and name in wanted and given[name] != wanted[name]
    ]
