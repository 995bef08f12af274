"""Makes a fetched model ready for use, by the rules that a worker loads with: no code of its own, no pickle.

That its bytes are those that were published says nothing of who published them.
"""

import json
import warnings
from importlib.util import find_spec
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from train_func.client.adapters import merged
from train_func.counted import listed, sized
from train_func.errors import InvalidInput
from train_func.installing import pip_install
from train_func.layout import PIPELINE
from train_func.records import RunRecord
from train_func.result import Result

if TYPE_CHECKING:
    from transformers import Pipeline

NO_FILES = "it has published no files: result() returns what the function returned"
MAX_SHOWN = 10  # published files
CONFIG = "config.json"  # all that the first versions published beside the weights


def check_loadable(record: RunRecord, published: Result) -> None:
    """Raises InvalidInput, with what was published, unless that is a model of which the task says how it is used."""
    if record.run.task is not None and {PIPELINE, CONFIG} & set(published.files):
        return
    shown = listed([f"{name} ({sized(size)})" for name, size in published.sizes.items()], MAX_SHOWN)
    has = f"it has published {shown}: fetch() returns the folder, to load them from" if shown else NO_FILES
    why = "has no task" if record.run.task is None else "has published no model of its task"
    raise InvalidInput(f"{record.name} {why}, so load() does not know how its files are used; {has}", cause="model")


def ready(folder: Path, base: Path | None = None) -> "Pipeline":
    """The ``transformers`` pipeline of a fetched model, of the kind that its task says; nothing is shown meanwhile.

    ``base``: the model that it is adapters of, if so.

    Raises:
        InvalidInput: it needs Python code of its own, has no safetensors, or is no whole model of that kind.
    """
    if find_spec("torch") is None:
        raise InvalidInput(f"{folder}: loading a model needs torch: {pip_install('local')}")
    options = _options(folder)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="IProgress not found")  # without ipywidgets no bar is expected either
        from transformers import pipeline
        from transformers.utils import logging
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        model, parts, report = _loaded(folder, base, options["task"])
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        text = str(error).strip().partition("\n")[0]
        raise _refused(folder, f"transformers cannot load it: {type(error).__name__}: {text[:300]}") from error
    finally:
        if bars:
            logging.enable_progress_bar()
    if missing := sorted(report["missing_keys"]):  # transformers would make them up
        raise _refused(folder, f"{len(missing)} tensors of it are not in it, such as {missing[0]}")
    return pipeline(**{**options, **parts, "model": model, "trust_remote_code": False})


def _options(folder: Path) -> dict[str, Any]:
    """The task and other options of the pipeline; what the first versions published has none, and classifies text."""
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
        raise _refused(folder, "the function has made a module of its own, and there is no pipeline for it")
    raise _refused(folder, f"{PIPELINE} is no object of plain options with the task of a pipeline")


def _is_plain(value: object) -> bool:
    """Also the numbers of tokens."""
    is_number_list = isinstance(value, list) and all(isinstance(of, int) for of in value)
    return is_number_list or isinstance(value, (str, int, float, NoneType))


def _loaded(folder: Path, base: Path | None, task: str) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """The model, what turns texts or images into what it takes, and what transformers reports of the weights."""
    from transformers import AutoImageProcessor, AutoTokenizer
    from transformers.pipelines import PIPELINE_REGISTRY

    of_task = PIPELINE_REGISTRY.check_task(task)[1]
    rules = {"local_files_only": True, "trust_remote_code": False}
    if of_task["type"] == "image":  # by Pillow, as it was trained
        parts = {"image_processor": AutoImageProcessor.from_pretrained(folder, backend="pil", **rules)}
    else:
        parts = {"tokenizer": AutoTokenizer.from_pretrained(folder, **rules)}
    (kind, *_) = of_task["pt"]
    if base is not None:
        return merged(kind, base, folder), parts, {"missing_keys": []}
    model, report = kind.from_pretrained(folder, use_safetensors=True, output_loading_info=True, **rules)
    return model, parts, report


def _refused(folder: Path, why: str) -> InvalidInput:
    return InvalidInput(
        f"{folder}: {why}. load() reads models in safetensors that transformers knows, and runs no code out "
        "of a model's folder; another kind of model is yours to load from the folder that fetch() returns",
        cause="model",
    )
