"""Arguments: what the session gives to TrainingArguments, and what no TrainingArguments may say otherwise.

The interface of transformers' Trainer: what of it our Trainer obeys, what it refuses by name, what changes nothing.

Every method of that class, every parameter of it and every field of TrainingArguments stands in one of these tables.
tests/contracts holds them against the locked version of transformers: what is new there fails until it is decided.
"""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.trainer_pt_utils import AcceleratorConfig

from train_func.errors import InvalidInput
from train_func.records import Numerics
from train_func.run import Run
from train_func.worker.rank import world
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


def check_no_folder(checkpoint: Any) -> None:
    """Raises InvalidInput (cause "code") where a training is to go on from a folder."""
    if isinstance(checkpoint, bool | None):
        return
    raise InvalidInput(
        f"trainer.train(resume_from_checkpoint={checkpoint!r}): the training goes on from the newest checkpoint of its "
        "run by itself: leave the argument out. Weights to begin with belong into the model",
        cause="code",
    )


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


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ROWS = (
    "the plan decides which rows form a step, and an evaluation uses every row once: choose or repeat rows before "
    "session.plan(rows), or weigh them in compute_loss"
)
_EVALUATION = (
    "evaluations are dealt over the ranks batch by batch: override prediction_step, evaluate or predict, or give "
    "compute_metrics or preprocess_logits_for_metrics"
)
_LOOP = (
    "the plan decides the steps, and where they go on after a restart: use a TrainerCallback, or override "
    "training_step or compute_loss"
)
_ITEMS = (
    "the labels of a micro-batch decide its weight in a step: return from compute_loss the mean of what it is called "
    "with, or a sum divided by num_items_in_batch"
)
_CHECKPOINTS = (
    "checkpoints are kept in the store and hold all of a training: keep what is yours in a TrainerCallback that is an "
    "ExportableState too, or write files and give them to session.publish"
)
SEARCH = "a search would train several models in one run: submit a Run for each set of values"
END = "the session ends the process group, behind session.publish: leave it out"
_SCHEDULE = "transformers does not call it either: override create_optimizer or create_scheduler"

OBEYED_METHODS = _names(
    """
    __init__ _build_accelerator_args _clip_grad_norm _determine_best_metric _evaluate
    _get_collator_with_removed_columns _get_grad_norm _get_learning_rate _has_mixed_mesh_grads
    _hp_search_setup _init_training_state _mixed_mesh_grad_norm _move_model_to_device
    _prepare_context_parallel_inputs _prepare_for_training _prepare_input _prepare_inputs
    _report_to_hp_search _set_signature_columns_if_needed _sync_replicated_trainable_parameters
    _validate_args _wrap_model add_callback autocast_smart_context_manager compute_loss
    compute_loss_context_manager create_accelerator_and_postprocess create_optimizer create_scheduler
    evaluate floating_point_ops get_cp_size get_decay_parameter_names get_optimizer_cls_and_kwargs
    get_sp_size get_total_train_batch_size get_tp_size get_train_dataloader is_local_process_zero
    is_world_process_zero log num_examples pop_callback predict prediction_step remove_callback
    set_initial_training_values store_flos train training_step
    """
)
# Called by users alone, or only with an argument that is refused.
HARMLESS_METHODS = _names(
    """
    _tune_save_checkpoint _update_auto_batch_size call_model_init create_model_card get_learning_rates
    get_num_trainable_parameters get_optimizer_group init_hf_repo log_metrics metrics_format push_to_hub
    save_metrics save_state
    """
)
REFUSED_METHODS: Mapping[str, str] = {
    **dict.fromkeys(("_get_train_sampler", "_get_eval_sampler", "_get_dataloader"), _ROWS),
    "_remove_unused_columns": "the collator leaves them out: override _get_collator_with_removed_columns, or set "
    "remove_unused_columns=False",
    **dict.fromkeys(("get_eval_dataloader", "get_test_dataloader", "evaluation_loop", "prediction_loop"), _EVALUATION),
    **dict.fromkeys(
        _names(
            """
            _defer_fsdp_gradient_reduction _finalize_training _inner_training_loop _maybe_log_save_evaluate _run_epoch
            _track_num_input_tokens get_batch_samples
            """
        ),
        _LOOP,
    ),
    "_get_num_items_in_batch": _ITEMS,
    **dict.fromkeys(
        _names(
            """
            _finish_current_push _get_output_dir _issue_warnings_after_load _load_best_model _load_callback_state
            _load_from_checkpoint _load_optimizer_and_scheduler _load_rng_state _load_scaler _push_from_checkpoint
            _save _save_checkpoint _save_optimizer_and_scheduler _save_rng_state _save_scaler save_model
            """
        ),
        _CHECKPOINTS,
    ),
    "create_optimizer_and_scheduler": _SCHEDULE,
    "hyperparameter_search": SEARCH,
    "end": END,
}
FORMER_METHODS = frozenset({"prediction_loop"})
"""Of earlier versions of transformers; classes that were written for them still override it."""

OBEYED_PARAMETERS = _names(
    """
    model args data_collator train_dataset eval_dataset processing_class compute_loss_func compute_metrics
    callbacks optimizers optimizer_cls_and_kwargs preprocess_logits_for_metrics
    """
)
REFUSED_PARAMETERS: Mapping[str, str] = {
    "model_init": "it would make another model when the training begins: give Trainer the model, as model=...",
}

OBEYED_ARGUMENTS = _names(
    """
    activation_checkpointing activation_checkpointing_kwargs adam_beta1 adam_beta2 adam_epsilon bf16
    dataloader_multiprocessing_context dataloader_num_workers dataloader_persistent_workers
    dataloader_pin_memory dataloader_prefetch_factor ddp_broadcast_buffers ddp_bucket_cap_mb
    ddp_find_unused_parameters ddp_static_graph debug eval_delay eval_on_start eval_steps eval_strategy fp16
    full_determinism gradient_checkpointing gradient_checkpointing_kwargs greater_is_better include_for_metrics
    label_names label_smoothing_factor learning_rate load_best_model_at_end log_level log_level_replica
    log_on_each_node logging_first_step logging_steps logging_strategy lr_scheduler_kwargs lr_scheduler_type
    max_grad_norm metric_for_best_model neftune_noise_alpha optim optim_args optim_target_modules
    per_device_eval_batch_size prediction_loss_only project remove_unused_columns report_to run_name save_steps
    save_strategy tf32 torch_compile torch_compile_backend torch_compile_mode torch_empty_cache_steps
    trackio_bucket_id trackio_space_id trackio_static_space_id use_cache warmup_steps weight_decay
    """
)
# Met in any case, or read only with another argument that is refused, or by scripts alone.
HARMLESS_ARGUMENTS = _names(
    """
    average_tokens_across_devices ddp_timeout disable_tqdm do_eval do_predict do_train eval_accumulation_steps
    eval_use_gather_object fsdp_config hub_always_push hub_model_id hub_private_repo hub_revision hub_strategy
    hub_token length_column_name liger_kernel_config local_rank logging_nan_inf_filter
    restore_callback_states_from_checkpoint save_on_each_node skip_memory_metrics
    """
)
_PRECISION = "an evaluation computes in the precision of the training: leave it out, bf16 holds for evaluations too"
_SHARDS = (
    "each rank of a plan holds the whole model and trains on rows of its own: leave it out, or shard the model in a "
    "train_func of your own"
)
REFUSED_ARGUMENTS: Mapping[str, str] = {
    "accelerator_config": "the plan deals the rows over the ranks, and Accelerate's loaders are not used",
    "batch_eval_metrics": "compute_metrics is given all rows at once: leave it out",
    "bf16_full_eval": _PRECISION,
    "fp16_full_eval": _PRECISION,
    "data_seed": "the order of the rows follows from the seed of the Run",
    "dataloader_in_order": "the order of the batches is that of the plan",
    "deepspeed": _SHARDS,
    "fsdp": _SHARDS,
    "parallelism_config": _SHARDS,
    "eval_do_concat_batches": "compute_metrics is given one array of all rows, in their order: leave it out",
    "include_num_input_tokens_seen": "rows that only fill a rank's place would be counted: job.history() has the rows "
    "per second; or count tokens in training_step",
    "push_to_hub": "no checkpoint is pushed while a model trains: call job.push_to_hub when the run has succeeded",
    "resume_from_checkpoint": "the training goes on from the newest checkpoint of its run by itself",
    "use_liger_kernel": "it replaces the loss by which a task is measured: call liger_kernel's functions for the "
    "layers of your model, before session.model()",
}
FOR_METRICS = ("inputs", "loss")
"""What include_for_metrics may name."""


def faults_of(trainer: transformers.Trainer, kind: type[transformers.Trainer]) -> list[str]:
    """What ``trainer`` overrides of ``kind`` that would not be called."""
    name = type(trainer).__name__
    return [
        f"{name}.{method}: train_func.worker.Trainer does not call it; {remedy}"
        for method, remedy in REFUSED_METHODS.items()
        if method in vars(trainer) or getattr(type(trainer), method, None) is not getattr(kind, method, None)
    ]


def parameter_faults(parameters: Mapping[str, Any]) -> list[str]:
    """What of the parameters of a Trainer would not be used."""
    return [
        f"Trainer({name}=...) is not used, because {why}"
        for name, why in REFUSED_PARAMETERS.items()
        if parameters.get(name) is not None
    ]


def unused_argument_faults(args: transformers.TrainingArguments) -> list[str]:
    """What in ``args`` would not be used."""
    defaults = {field.name: field.default for field in dataclasses.fields(args)}
    faults = [
        f"TrainingArguments({name}={getattr(args, name)!r}): expected {defaults[name]!r}, because {why}"
        for name, why in REFUSED_ARGUMENTS.items()
        if name in defaults and not _is_default(getattr(args, name), defaults[name]) and not _says_the_same(args, name)
    ]
    if strange := [name for name in args.include_for_metrics if name not in FOR_METRICS]:
        faults.append(f"TrainingArguments(include_for_metrics={strange!r}): {' and '.join(FOR_METRICS)} are there")
    return faults


def smoothing_faults(args: transformers.TrainingArguments, model: Any) -> list[str]:
    """Whether labels are to be smoothed that are no classes."""
    config = getattr(model, "config", None)
    problem = getattr(config, "problem_type", None)
    if problem is None and getattr(config, "num_labels", None) == 1:
        problem = "regression"  # as transformers takes it
    if not args.label_smoothing_factor or problem not in ("regression", "multi_label_classification"):
        return []
    fault = (
        f"TrainingArguments(label_smoothing_factor={args.label_smoothing_factor!r}): expected 0.0, because the model "
        f"has problem_type={problem!r}, and only the labels of one class out of several can be smoothed: leave it out"
    )
    return [fault]


def _says_the_same(args: transformers.TrainingArguments, name: str) -> bool:
    """Whether the training does in any case what is asked for."""
    value = getattr(args, name)
    return (name == "data_seed" and value == args.seed) or (
        name == "resume_from_checkpoint" and value in (True, "True")
    )


def _is_default(value: Any, default: Any) -> bool:
    return value == default or (default is None and value in (AcceleratorConfig(), "", [], {}, False))
