"""How a fetched model is used, as its folder says: options of the pipeline, class of the model, tokenizer."""

import json
from pathlib import Path
from types import NoneType
from typing import Any

from train_func.errors import InvalidInput
from train_func.layout import LABELS, PIPELINE

RULES = {"local_files_only": True, "trust_remote_code": False}  # of everything that is loaded


def options_of(folder: Path) -> dict[str, Any]:
    """The task and other options of the pipeline; what the first versions published has none, and classifies text.

    Raises:
        InvalidInput: (cause "model") there is no pipeline for it, or these are no options.
    """
    path = folder / PIPELINE
    try:
        found = json.loads(path.read_text()) if path.exists() else {"task": "text-classification", "truncation": True}
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(_is_plain(value) for value in found.values()):
        found = {}
    if isinstance(found.get("task"), str):
        return found
    if path.exists() and path.read_text().strip() == "{}":
        names = f"; {LABELS} has the names of its classes" if (folder / LABELS).exists() else ""
        raise refused(folder, f"the function has made a module of its own, and there is no pipeline for it{names}")
    raise refused(folder, f"{PIPELINE} is no object of plain options with the task of a pipeline")


def _is_plain(value: object) -> bool:
    """Also the numbers of tokens."""
    is_number_list = isinstance(value, list) and all(isinstance(of, int) for of in value)
    return is_number_list or isinstance(value, (str, int, float, NoneType))


def parts_of(folder: Path, task: str) -> tuple[Any, dict[str, Any]]:
    """The auto class of transformers for models of a task, and what turns texts or images into what they take."""
    from transformers import AutoImageProcessor, AutoTokenizer
    from transformers.pipelines import PIPELINE_REGISTRY

    of_task = PIPELINE_REGISTRY.check_task(task)[1]
    (kind, *_) = of_task["pt"]
    if of_task["type"] == "image":  # by Pillow, as it was trained
        return kind, {"image_processor": AutoImageProcessor.from_pretrained(folder, backend="pil", **RULES)}
    return kind, {"tokenizer": AutoTokenizer.from_pretrained(folder, **RULES)}


def refused(folder: Path, why: str) -> InvalidInput:
    return InvalidInput(
        f"{folder}: {why}. load() reads models in safetensors that transformers knows, and runs no code out "
        "of a model's folder; another kind of model is yours to load from the folder that fetch() returns",
        cause="model",
    )
