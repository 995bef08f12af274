"""Arguments: what the session gives to TrainingArguments, and what of transformers' interface our Trainer refuses.

Everything else of that interface is obeyed or changes nothing. tests/contracts lists it against the locked version of
transformers: what is new there fails until it is decided.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.trainer_pt_utils import AcceleratorConfig

from train_func.errors import InvalidInput
from train_func.run import Run
from train_func.wire.records import Numerics
from train_func.worker.rank import world
from train_func.worker.training.plan import PlanFacts

# Decided elsewhere, and why; in TrainingArguments, a value that says the same is no fault.
DECIDED = {
    "output_dir": "it is a folder of this rank, which the session makes and removes; what is published is kept",
    "seed": "the Run has that seed: set seed of the Run",
    "use_cpu": "the machine decides it",
    "ddp_backend": "the machine decides it",
    "per_device_train_batch_size": "the plan fixes the batches: set micro_batch_size of the Run",
    "gradient_accumulation_steps": "it follows from the plan: set batch_size and micro_batch_size of the Run",
    "num_train_epochs": "the Run and its plan have that number: set epochs of the Run, and pass "
    "TrainingArguments(**session.arguments()), which carries it",
}
OF_PLAN = ("per_device_train_batch_size", "gradient_accumulation_steps")
# With a tracker, the training loss is logged about a hundred times.
TRACKED = {"logging_strategy": "steps", "logging_steps": 0.01}


class DefaultSize(int):
    """The size of an evaluation's batches where the function chooses none: the lengths of its rows decide."""


def session_arguments(
    output_dir: Path, run: Run, numerics: Numerics, choices: Mapping[str, Any], *, is_launched: bool
) -> dict[str, Any]:
    """Returns the arguments of a session, in which ``choices``, those of the function, replace the ones of their names.

    Args:
        output_dir: folder of this rank.
        run: decides epochs, learning rate and seed.
        numerics: of the attempt.
        choices: what the function adds.
        is_launched: by a launcher, so that there are ranks to meet.

    Raises:
        InvalidInput: (cause "code") naming all of ``choices`` that the run, the plan or the machine decides.
    """
    has_gpu = torch.cuda.is_available()
    defaults = {
        "output_dir": str(output_dir),
        "seed": run.seed,
        "num_train_epochs": run.epochs,
        "learning_rate": run.learning_rate,
        "use_cpu": not has_gpu,
        "per_device_eval_batch_size": 4 * run.micro_batch_size if run.micro_batch_size else DefaultSize(8),
        "bf16": numerics.precision == "bf16",
        "ddp_backend": torch.distributed.get_backend() if has_gpu and is_launched else None,
        "dataloader_pin_memory": has_gpu,
        "report_to": "none",
        "logging_strategy": "no",
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    of_plan = [name for name in OF_PLAN if name in choices]
    faults = [f"TrainingArguments({name}={choices[name]!r}): leave it out, because {DECIDED[name]}" for name in of_plan]
    if faults := faults + _decided_faults(choices, defaults) + refused_argument_faults(choices):
        raise InvalidInput(faults, cause="code")
    if choices.get("report_to", "none") not in ("none", [], ["none"]):
        defaults |= TRACKED
    if "logging_steps" in choices:
        defaults["logging_strategy"] = "steps"
    return {**defaults, **choices}


def logging_steps_of(args: transformers.TrainingArguments, num_steps: int) -> int:
    """Returns every how many steps ``args`` has the loss logged, or 0 if it is not logged by steps."""
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


def leave_to_plan(args: transformers.TrainingArguments | None) -> transformers.TrainingArguments:
    """Changes ``args`` so that transformers leaves to the plan and its weights what they do.

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


@contextmanager
def cut_of(facts: PlanFacts, args: transformers.TrainingArguments) -> Iterator[None]:
    """Lets ``args`` say within the block how the plan cuts its batches, as transformers counts steps by it."""
    before = {name: getattr(args, name) for name in OF_PLAN}
    vars(args).update(_cut(facts))
    try:
        yield
    finally:
        vars(args).update(before)


def _cut(facts: PlanFacts) -> dict[str, int]:
    rows = math.ceil(facts.batch_size / (facts.accumulation * facts.world_size))
    return dict(zip(OF_PLAN, (rows, facts.accumulation), strict=True))


def plan_faults(args: transformers.TrainingArguments, facts: PlanFacts) -> list[str]:
    """Returns what in ``args`` does not fit the plan that is to be trained on."""
    expected = {"num_train_epochs": facts.num_epochs}
    defaults = {field.name: field.default for field in dataclasses.fields(args)}
    for name, value in {"seed": facts.seed, **_cut(facts)}.items():
        if getattr(args, name) != defaults[name]:  # a default was not chosen by the user
            expected[name] = value
    faults = _decided_faults({name: getattr(args, name) for name in expected}, expected)
    if not args.world_size == world.size() == facts.world_size:
        faults.append(
            f"transformers sees {args.world_size} ranks, the launcher started {world.size()}, and the plan was made "
            f"for {facts.world_size}: pass TrainingArguments(**session.arguments(...)), which says use_cpu, and a plan "
            "of this session"
        )
    return faults


def _decided_faults(values: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    return [
        f"TrainingArguments({name}={values[name]!r}): expected {expected[name]!r}, because {why}"
        for name, why in DECIDED.items()
        if name in values and name in expected and values[name] != expected[name]
    ]


SEARCH = "a search would train several models in one run: submit a Run for each set of values"
END = "the session ends the process group, behind session.publish: leave it out"
REFUSED_METHODS = {
    method: remedy
    for methods, remedy in {
        "get_train_dataloader _get_train_sampler _get_eval_sampler _get_dataloader": "the plan decides which rows form "
        "a step, and an evaluation uses every row once: choose or repeat rows before session.plan(rows), or weigh them "
        "in compute_loss",
        "_remove_unused_columns": "the collator leaves them out: override _get_collator_with_removed_columns, or set "
        "remove_unused_columns=False",
        "get_eval_dataloader get_test_dataloader evaluation_loop prediction_loop": "evaluations are dealt over the "
        "ranks batch by batch: override prediction_step, evaluate or predict, or give compute_metrics or "
        "preprocess_logits_for_metrics",
        "_defer_fsdp_gradient_reduction _finalize_training _inner_training_loop _maybe_log_save_evaluate _run_epoch "
        "_track_num_input_tokens get_batch_samples": "the plan decides the steps, and where they go on after a "
        "restart: use a TrainerCallback, or override training_step or compute_loss",
        "_get_num_items_in_batch": "the labels of a micro-batch decide its weight in a step: return from compute_loss "
        "the mean of what it is called with, or a sum divided by num_items_in_batch",
        "_finish_current_push _get_output_dir _issue_warnings_after_load _load_best_model _load_callback_state "
        "_load_from_checkpoint _load_optimizer_and_scheduler _load_rng_state _load_scaler _push_from_checkpoint "
        "_save _save_checkpoint _save_optimizer_and_scheduler _save_rng_state _save_scaler save_model": "checkpoints "
        "are kept in the store and hold all of a training: keep what is yours in a TrainerCallback that is an "
        "ExportableState too, or write files and give them to session.publish",
        "create_optimizer_and_scheduler": "transformers does not use it either: override create_optimizer or "
        "create_scheduler",
        "hyperparameter_search": SEARCH,
        "end": END,
    }.items()
    for method in methods.split()
}

REFUSED_PARAMETERS: Mapping[str, str] = {
    "model_init": "it would make another model when the training begins: give Trainer the model, as model=...",
}

REFUSED_ARGUMENTS = {
    argument: why
    for names, why in {
        "max_steps auto_find_batch_size": "the plan has whole epochs and fixes the batches: set epochs, batch_size or "
        "micro_batch_size of the Run, or samples of its task",
        "accelerator_config data_seed dataloader_drop_last dataloader_in_order train_sampling_strategy": "the plan "
        "deals every row over the ranks, in an order that follows from the seed of the Run",
        "enable_jit_checkpoint ignore_data_skip resume_from_checkpoint save_only_model save_total_limit": "the "
        "training goes on by itself from the newest of two checkpoints in the store, which have its optimizer, its "
        "schedule, the best weights and the place in its plan",
        "batch_eval_metrics eval_do_concat_batches": "compute_metrics is given one array of all rows, in their order: "
        "leave it out",
        "bf16_full_eval fp16_full_eval": "an evaluation computes in the precision of the training: leave it out, bf16 "
        "holds for evaluations too",
        "deepspeed fsdp parallelism_config": "each rank of a plan holds the whole model and trains on rows of its own: "
        "leave it out, or shard the model in a train_func of your own",
        "include_num_input_tokens_seen": "rows that only fill a rank's place would be counted: job.history() has the "
        "rows per second; or count tokens in training_step",
        "push_to_hub": "no checkpoint is pushed while a model trains: call job.push_to_hub when the run has succeeded",
        "use_liger_kernel": "it replaces the loss by which a task is measured: call liger_kernel's functions for the "
        "layers of your model, before session.model()",
    }.items()
    for argument in names.split()
}
FOR_METRICS = ("inputs", "loss")  # what include_for_metrics may name


def method_faults(trainer: transformers.Trainer, kind: type[transformers.Trainer]) -> list[str]:
    """Returns what ``trainer`` overrides of ``kind`` that is not used."""
    name = type(trainer).__name__
    return [
        f"{name}.{method}: train_func.worker.Trainer does not use it; {remedy}"
        for method, remedy in REFUSED_METHODS.items()
        if method in vars(trainer) or getattr(type(trainer), method, None) is not getattr(kind, method, None)
    ]


def parameter_faults(parameters: Mapping[str, Any]) -> list[str]:
    """Returns which of the parameters of a Trainer would not be used."""
    return [
        f"Trainer({name}=...) is not used, because {why}"
        for name, why in REFUSED_PARAMETERS.items()
        if parameters.get(name) is not None
    ]


def check_train_call(resume_from_checkpoint: Any, trial: Any) -> None:
    """Raises InvalidInput (cause "code") for arguments of ``Trainer.train`` that only transformers' own would use."""
    if trial is not None:
        raise InvalidInput(f"trainer.hyperparameter_search: {SEARCH}", cause="code")
    if not isinstance(resume_from_checkpoint, bool | None):
        raise InvalidInput(
            f"trainer.train(resume_from_checkpoint={resume_from_checkpoint!r}): the training goes on from the newest "
            "checkpoint of its run by itself: leave the argument out. Weights to begin with belong into the model",
            cause="code",
        )


def refused_argument_faults(values: Mapping[str, Any]) -> list[str]:
    """Returns which of the values of TrainingArguments would not be used; what is done in any case is no fault."""
    harmless = {
        "accelerator_config": AcceleratorConfig(),
        "data_seed": values.get("seed"),
        "resume_from_checkpoint": True,
    }
    defaults = {field.name: field.default for field in dataclasses.fields(transformers.TrainingArguments)}
    faults = []
    for name, why in REFUSED_ARGUMENTS.items():
        value, default = values.get(name, defaults[name]), defaults[name]
        if (value or default) and value not in (default, harmless.get(name)):
            faults.append(f"TrainingArguments({name}={value!r}): expected {default!r}, because {why}")
    if strange := [name for name in values.get("include_for_metrics", ()) if name not in FOR_METRICS]:
        faults.append(f"TrainingArguments(include_for_metrics={strange!r}): {' and '.join(FOR_METRICS)} are there")
    return faults
