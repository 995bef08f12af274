"""LoRA: small trained matrices beside the linear layers of a model, whose own weights stay as they are."""

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from peft import LoraConfig, get_peft_model

from train_func.counted import listed
from train_func.errors import InvalidInput
from train_func.tasks import CausalLM
from train_func.worker.inputs.model import FoundModel

ALL = "all-linear"  # but the last, as peft has it


def with_adapters(model: Any, task: CausalLM, found: FoundModel, seed: int) -> Any:
    """The model with adapters, the same for the same seed on every rank; they change nothing before they are trained.

    Raises:
        InvalidInput: (cause "input") it has no such layers, or peft has no adapters for them.
    """
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=task.lora_rank or 0,
        lora_alpha=task.lora_alpha or 2 * (task.lora_rank or 0),
        lora_dropout=task.lora_dropout,
        target_modules=list(task.lora_layers) or ALL,
        bias="none",
    )
    modules = dict(model.named_modules())
    if unknown := [name for name in task.lora_layers if not any(f".{of}".endswith(f".{name}") for of in modules)]:
        raise InvalidInput(
            f"lora_layers={task.lora_layers!r}: {found.where} has no layers called {listed(unknown, show=repr)}; its "
            f"linear layers are called {', '.join(_linear(modules)) or 'nothing: it has none'}; name some of these in "
            "lora_layers, or leave it out for all but the last",
            cause="input",
        )
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            # peft asks for an attribute by the name that transformers gives up.
            warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
            torch.manual_seed(seed)
            adapted = get_peft_model(model, config)
    except ValueError as error:
        said = " ".join(str(error).split())[:300]
        raise InvalidInput(
            f"lora_layers={task.lora_layers!r}: peft has no adapters for these of {found.where}: {said}; name some of "
            f"{', '.join(_linear(modules))} in lora_layers, or leave it out for every linear one but the last",
            cause="input",
        ) from error
    held = adapted.peft_config["default"]
    held.base_model_name_or_path, held.revision = task.model, found.commit
    return adapted


def _linear(modules: Mapping[str, Any]) -> list[str]:
    """Last parts of the names of linear layers, also of those that GPT-2 has in their place."""
    found = {
        name.rpartition(".")[2]
        for name, of in modules.items()
        if not isinstance(of, torch.nn.Embedding) and getattr(getattr(of, "weight", None), "ndim", 0) == 2
    }
    return sorted(found)
