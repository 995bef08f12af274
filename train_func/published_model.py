"""The model in a folder of published files: options of its pipeline, class, tokenizer, weights, adapters.

A notebook loads a fetched model with it, and a worker the files that it is about to publish, so that both get the same.
"""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open

from train_func.errors import InvalidInput
from train_func.wire.layout import LABELS, PIPELINE

ADAPTERS, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
GENERATION = "generation_config.json"
WITHIN = ("", ".base_layer", ".token_adapter.base_layer")  # where a layer has its weights, that peft puts others beside
RULES = {"local_files_only": True, "trust_remote_code": False}  # of everything that is loaded


def are_adapters(folder: Path) -> bool:
    """Returns whether the folder has adapters of another model."""
    return (folder / ADAPTERS).exists()


def are_causal(adapters: Path) -> bool:
    """Returns whether they are adapters of a causal language model."""
    kind, use = object_in(adapters / ADAPTERS).get("task_type"), object_in(adapters / PIPELINE).get("task")
    return kind == "CAUSAL_LM" or use == "text-generation"


def object_in(path: Path) -> dict[str, Any]:
    """Returns the JSON object in a file; empty if there is none."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def options_of(folder: Path) -> dict[str, Any]:
    """Returns the task and other options of the pipeline.

    Raises:
        InvalidInput: (cause "model") there is no pipeline for it, or its options are invalid.
    """
    options = object_in(folder / PIPELINE)
    if isinstance(options.get("task"), str) and not any(isinstance(value, dict) for value in options.values()):
        return options
    if (folder / PIPELINE).exists() and (folder / PIPELINE).read_text().strip() == "{}":
        names = f"; {LABELS} has the names of its classes" if (folder / LABELS).exists() else ""
        raise refused(folder, f"the function has made a module of its own, and there is no pipeline for it{names}")
    raise refused(folder, f"{PIPELINE} is no object of plain options with the task of a pipeline")


def loaded(folder: Path, kind: Any, base: Path | None) -> Any:
    """Returns the model of a folder, by an auto class of transformers; ``base``: the base of adapters.

    Raises:
        InvalidInput: as ``merged``; or tensors are missing, which transformers would fill at random.
    """
    if base is not None:
        return merged(kind, base, folder)
    model, report = kind.from_pretrained(folder, use_safetensors=True, output_loading_info=True, **RULES)
    if missing := sorted(report["missing_keys"]):
        raise refused(folder, f"{len(missing)} tensors of the model are missing, such as {missing[0]}")
    return model


def class_of(task: str) -> tuple[Any, str]:
    """Returns the auto class of transformers for a pipeline's task, and the type of its inputs, such as "text"."""
    from transformers.pipelines import PIPELINE_REGISTRY

    of_task = PIPELINE_REGISTRY.check_task(task)[1]
    return of_task["pt"][0], of_task["type"]


def parts_of(folder: Path, task: str) -> tuple[Any, dict[str, Any]]:
    """Returns the auto class of transformers for a task, and the tokenizer or image processor of the folder."""
    from transformers import AutoImageProcessor, AutoTokenizer

    kind, takes = class_of(task)
    if takes == "image":  # by Pillow, as it was trained
        return kind, {"image_processor": AutoImageProcessor.from_pretrained(folder, backend="pil", **RULES)}
    return kind, {"tokenizer": AutoTokenizer.from_pretrained(folder, **RULES)}


def merged(kind: Any, base: Path, adapters: Path) -> Any:
    """Returns the base model, by an auto class of transformers, with the adapters merged into its float32 weights.

    In bfloat16, the type of most published models, the sum would be rounded, and answers would differ.

    Raises:
        InvalidInput: (cause "model") these are no LoRA adapters in safetensors, or they belong to another model.
    """
    from peft import PeftModel, get_peft_model_state_dict
    from transformers import GenerationConfig

    try:
        config = json.loads((adapters / ADAPTERS).read_text())
        with safe_open(adapters / ADAPTER_WEIGHTS, framework="numpy") as file:
            sizes = {name: file.get_slice(name).get_shape()[0] for name in file.keys()}  # noqa: SIM118
    except (OSError, ValueError) as error:
        raise refused(adapters, f"its adapters cannot be read: {error}") from error
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise refused(adapters, f"{ADAPTERS} has no LoRA adapters, the only kind that load() supports")
    model = kind.from_pretrained(base, dtype="float32", use_safetensors=True, **RULES)
    _resize(model, sizes)
    with warnings.catch_warnings():
        # Of transformers, which peft asks by the old name; nothing to do for who merges.
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated", category=FutureWarning)
        adapted = PeftModel.from_pretrained(model, str(adapters), local_files_only=True)
    # By any other name peft would ask the Hub for it.
    adapted.peft_config["default"].base_model_name_or_path = str(base)
    if set(sizes) != set(get_peft_model_state_dict(adapted)):
        raise refused(adapters, f"the tensors of {ADAPTER_WEIGHTS} are not those of adapters for {base}")
    _untie(adapted.get_base_model())
    model = adapted.merge_and_unload()
    if (adapters / GENERATION).exists():
        model.generation_config = GenerationConfig.from_pretrained(adapters, local_files_only=True)
    return model


def _resize(model: Any, sizes: Mapping[str, int]) -> None:
    """Resizes embeddings or head to the tokens in the file, because a function may have added tokens.

    ``sizes``: sizes of the first dimension of the tensors in the file.
    """
    ends = [model.get_input_embeddings(), model.get_output_embeddings()]
    names = [name for name, module in model.named_modules() if any(module is end for end in ends)]
    places = [f"base_model.model.{name}{inside}.weight" for name in names for inside in WITHIN]
    num_tokens = next((sizes[place] for place in places if place in sizes), None)
    if num_tokens not in (None, ends[0].weight.shape[0]):
        model.resize_token_embeddings(num_tokens, mean_resizing=False)


def _untie(model: Any) -> None:
    """Gives a head that shares its weights with the embeddings its own, if one of the two has adapters."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    if head is None or head.weight is not embeddings.weight:
        return
    if isinstance(head, BaseTunerLayer) or isinstance(embeddings, BaseTunerLayer):
        bare = head.get_base_layer() if isinstance(head, BaseTunerLayer) else head
        bare.weight = type(bare.weight)(bare.weight.detach().clone())
        model.config.tie_word_embeddings = model.config.get_text_config().tie_word_embeddings = False


def refused(folder: Path, why: str) -> InvalidInput:
    """Returns the error of a folder that is no model, or none that can be loaded here."""
    return InvalidInput(
        f"{folder}: {why}. load() reads models in safetensors that transformers knows, and runs no code out "
        "of a model's folder; another kind of model is yours to load from the folder that fetch() returns",
        cause="model",
    )
