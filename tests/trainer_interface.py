"""What of transformers' Trainer ours obeys, and what changes nothing; what it refuses stands in its arguments.py.

A method, parameter or argument that is new in a version of transformers fails until it stands in a table.
"""


def names(text):
    return frozenset(text.split())


OBEYED_METHODS = names(
    """
    __init__ _build_accelerator_args _clip_grad_norm _determine_best_metric _evaluate
    _get_collator_with_removed_columns _get_grad_norm _get_learning_rate _has_mixed_mesh_grads
    _hp_search_setup _init_training_state _mixed_mesh_grad_norm _move_model_to_device
    _prepare_context_parallel_inputs _prepare_for_training _prepare_input _prepare_inputs
    _report_to_hp_search _set_signature_columns_if_needed _sync_replicated_trainable_parameters
    _validate_args _wrap_model add_callback autocast_smart_context_manager compute_loss
    compute_loss_context_manager create_accelerator_and_postprocess create_optimizer create_scheduler
    evaluate floating_point_ops get_cp_size get_decay_parameter_names get_optimizer_cls_and_kwargs
    get_sp_size get_total_train_batch_size get_tp_size is_local_process_zero
    is_world_process_zero log num_examples pop_callback predict prediction_step remove_callback
    set_initial_training_values store_flos train training_step
    """
)
# Called by users alone, or only with an argument that is refused.
HARMLESS_METHODS = names(
    """
    _tune_save_checkpoint _update_auto_batch_size call_model_init create_model_card get_learning_rates
    get_num_trainable_parameters get_optimizer_group init_hf_repo log_metrics metrics_format push_to_hub
    save_metrics save_state
    """
)
FORMER_METHODS = frozenset({"prediction_loop"})
"""Of earlier versions of transformers; classes that were written for them still override it."""

OBEYED_PARAMETERS = names(
    """
    model args data_collator train_dataset eval_dataset processing_class compute_loss_func compute_metrics
    callbacks optimizers optimizer_cls_and_kwargs preprocess_logits_for_metrics
    """
)
OBEYED_ARGUMENTS = names(
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
HARMLESS_ARGUMENTS = names(
    """
    average_tokens_across_devices ddp_timeout disable_tqdm do_eval do_predict do_train eval_accumulation_steps
    eval_use_gather_object fsdp_config hub_always_push hub_model_id hub_private_repo hub_revision hub_strategy
    hub_token length_column_name liger_kernel_config local_rank logging_nan_inf_filter
    restore_callback_states_from_checkpoint save_on_each_node skip_memory_metrics
    """
)
