"""LoRA: small trained matrices beside the linear layers of a model, whose own weights stay as they are."""

import warnings
from typing import Any

import torch
from peft import LoraConfig, get_peft_model

from train_func.errors import InvalidInput
from train_func.tasks import CausalLM
from train_func.worker.inputs.model import FoundModel

ALL = "all-linear"  # but the last, as peft has it


def with_adapters(model: Any, task: CausalLM, found: FoundModel, seed: int) -> Any:
    """The model with adapters, the same for the same seed on every rank; they change nothing before they are trained.

    Raises:
        InvalidInput: (cause "model") it has no such layers.
    """
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=task.lora_rank or 0,
        lora_alpha=task.lora_alpha or 2 * (task.lora_rank or 0),
        lora_dropout=task.lora_dropout,
        target_modules=list(task.lora_layers) or ALL,
        bias="none",
    )
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            # peft asks for an attribute by the name that transformers gives up.
            warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
            torch.manual_seed(seed)
            adapted = get_peft_model(model, config)
    except ValueError as error:
        linear = sorted(
            {name.rpartition(".")[2] for name, of in model.named_modules() if isinstance(of, torch.nn.Linear)}
        )
        raise InvalidInput(
            f"lora_layers={task.lora_layers!r}: {found.where} has no such layers; its linear layers are called "
            f"{', '.join(linear) or 'nothing: it has none'}",
            cause="model",
        ) from error
    held = adapted.peft_config["default"]
    held.base_model_name_or_path, held.revision = task.model, found.commit
    return adapted
