"""Makes a fetched model ready for use, by the rules that a worker loads with: no code of its own, no pickle.

That its bytes are those that were published says nothing of who published them.
"""

import warnings
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from train_func.client.extras import pip_install
from train_func.errors import InvalidInput
from train_func.layout import PIPELINE
from train_func.published_model import loaded, options_of, parts_of, refused
from train_func.records import RunRecord
from train_func.result import Result
from train_func.rgb import opened
from train_func.text import listed, sized

if TYPE_CHECKING:
    from transformers import Pipeline

NO_FILES = "it has published no files: result() returns what the function returned"
MAX_SHOWN = 10  # published files


def check_loadable(record: RunRecord, published: Result) -> None:
    """Raises InvalidInput, with what was published, unless that is a model of which the task says how it is used."""
    if record.run.task is not None and PIPELINE in published.files:
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
    options = options_of(folder)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="IProgress not found")  # without ipywidgets no bar is expected either
        from transformers import pipeline
        from transformers.utils import logging
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        kind, parts = parts_of(folder, options["task"])
        model = loaded(folder, kind, base)
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        text = str(error).strip().partition("\n")[0]
        raise refused(folder, f"transformers cannot load it: {type(error).__name__}: {text[:300]}") from error
    finally:
        if bars:
            logging.enable_progress_bar()
    use = pipeline(**{**options, **parts, "model": model, "trust_remote_code": False})
    if "image_processor" in parts:  # images as it was trained on them, also those that are transparent
        use.preprocess = partial(_of_rgb, use.preprocess)
    return use


def _of_rgb(preprocess: Callable[..., Any], image: Any, timeout: float | None = None, **options: Any) -> Any:
    return preprocess(opened(image, timeout), timeout=timeout, **options)
