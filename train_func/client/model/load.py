"""Makes a fetched model ready for use, by the rules that a worker loads with: no code of its own, no pickle.

Adapters are put on the model that they were trained on, which is brought to this machine and verified. That bytes are
those that were published says nothing of who published them.
"""

import json
import shutil
import warnings
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from train_func.client.model.fetch import MERGED, merged_folder, sha256_of, staging_folder
from train_func.client.packages.inventory import pip_install
from train_func.client.preflight import Question
from train_func.errors import InvalidInput
from train_func.published_model import (
    ADAPTERS,
    are_adapters,
    are_causal,
    loaded,
    merged,
    object_in,
    options_of,
    parts_of,
    refused,
)
from train_func.rgb import open_image
from train_func.text import listed, shown, sized
from train_func.wire.layout import CARD, MODEL_MANIFEST, PIPELINE
from train_func.wire.records import RunRecord
from train_func.wire.result import Result

if TYPE_CHECKING:
    from transformers import Pipeline

NO_FILES = "it has published no files: result() returns what the function returned"
MAX_SHOWN = 10  # published files


def check_loadable(record: RunRecord, published: Result) -> None:
    """Raises InvalidInput, with what was published, unless that is a model of which the task says how it is used."""
    if record.run.task is not None and PIPELINE in published.files:
        return
    names = listed([f"{name} ({sized(size)})" for name, size in published.sizes.items()], MAX_SHOWN)
    has = f"it has published {names}: fetch() returns the folder, to load them from" if names else NO_FILES
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
    return preprocess(open_image(image, timeout), timeout=timeout, **options)


def base_of(record: RunRecord, adapters: Path) -> Path:
    """The folder of the model that the run's adapters were trained on, brought to this machine where it is not here.

    ``adapters``: their fetched folder.

    Raises:
        InvalidInput: (cause "model") it cannot be found or has changed since, or is no causal language model; peft is
            not installed.
    """
    if find_spec("peft") is None:
        raise InvalidInput(f"{adapters}: putting adapters on their model needs peft: {pip_install('local')}")
    task = record.run.task.to_dict() if record.run.task else {}
    fault = ""
    if "model" not in task:
        fault = f"{record.name} has no task that names the model of its adapters"
    elif not are_causal(adapters):  # other models' heads are published neither with their adapters nor their base
        kind = object_in(adapters / ADAPTERS).get("task_type")
        fault = (
            f"{adapters}: adapters of task_type {kind!r}, which the function has made itself; load() and "
            "fetch('merged') take those of causal language models alone"
        )
    if fault:
        raise InvalidInput(
            f"{fault}. fetch() returns the folder: load the model that the function has loaded, and put them on it "
            "with peft's PeftModel.from_pretrained(model, folder)",
            cause="model",
        )
    request = {"model": task["model"], "revision": task["model_revision"], "store": record.store}
    print(shown(f"{record.name}: adapters of {task['model']}, which is brought to this machine where it is not here"))
    with Question("base", f"the search for {task['model']}", **request) as question:
        answer = question.answer()
    expected = record.fingerprints.get("model", answer["fingerprint"])
    if answer["fingerprint"] != expected:
        raise InvalidInput(
            f"{task['model']}, on which the adapters of {record.name} were trained, has changed since: its fingerprint "
            f"was {expected} and is {answer['fingerprint']}; put back the model that was trained on",
            cause="model",
        )
    return Path(answer["folder"])


def merge(record: RunRecord, adapters: Path, to: str | Path | None) -> Path:
    """Writes the whole model of fetched adapters to ``to``, by default beside them; returns the folder.

    Raises InvalidInput where no adapters were published, or as ``write_merged``.
    """
    if not are_adapters(adapters):
        raise InvalidInput(f"{record.name} has published a whole model and no adapters: fetch('model') brings it")
    folder = Path(to) if to is not None else merged_folder(adapters)
    return write_merged(record, adapters, folder.expanduser().absolute(), is_ours=to is None)


def write_merged(record: RunRecord, adapters: Path, to: Path, *, is_ours: bool) -> Path:
    """Writes the base model with the adapters in its weights to ``to``, whole or not at all; needs torch.

    ``is_ours``: no one has named the folder; a merged model of other adapters in it gives way to this one.

    Raises:
        InvalidInput: as ``options_of``, ``base_of`` and ``merged``; or ``to`` holds something else, and stays as it is.
    """
    made_of = {"run": record.name, "adapters": json.loads((adapters / MODEL_MANIFEST).read_text())["files"]}
    made_before = object_in(to / MERGED)
    if {**made_before, **made_of} == made_before:
        return to
    is_free = not to.exists() or (to.is_dir() and not any(to.iterdir()))
    if not is_free and not (is_ours and made_before):
        raise InvalidInput(f"{to} holds something else: name a folder that is new or empty, as to=...")
    # A loop of one's own publishes no pipeline; adapters without one are of a language model.
    options = options_of(adapters) if (adapters / PIPELINE).exists() else {"task": "text-generation"}
    kind, parts = parts_of(adapters, options["task"])
    model = merged(kind, base_of(record, adapters), adapters)
    if "eos_token_id" in options:  # where its answers end, for those who generate without this package
        model.generation_config.eos_token_id = options["eos_token_id"]
    with staging_folder(to.parent) as staging:
        folder = staging / "model"
        model.save_pretrained(folder)
        for part in parts.values():
            part.save_pretrained(folder)
        if (adapters / PIPELINE).exists():
            shutil.copyfile(adapters / PIPELINE, folder / PIPELINE)
        (folder / CARD).write_text(_card(record, adapters, options["task"]), encoding="utf-8")
        files = {path.relative_to(folder).as_posix(): sha256_of(path) for path in folder.rglob("*") if path.is_file()}
        (folder / MERGED).write_text(json.dumps({**made_of, "files": files}))
        if made_before:
            to.rename(staging / "before")
        folder.rename(to)
    return to


def _card(record: RunRecord, adapters: Path, use: str) -> str:
    """The card of a merged model; data, metrics and how to reproduce it are in that of its adapters, behind it."""
    from huggingface_hub import ModelCard, ModelCardData

    card = (adapters / CARD).read_text(encoding="utf-8") if (adapters / CARD).exists() else ""
    of_adapters = ModelCard(card, ignore_metadata_errors=True)
    base = of_adapters.data.get("base_model")
    data = ModelCardData(library_name="transformers", pipeline_tag=use, base_model=base, tags=["train_func"])
    adapted = record.run.task.to_dict().get("model", "") if record.run.task else ""
    return f"""---
{data.to_yaml()}
---

# {record.name}, merged

The adapters of the run {record.name} in the weights of {base or PurePath(adapted).name}, on which they were trained.
Its weights are float32. It is used as any other model of transformers:

```python
from transformers import pipeline

use = pipeline({use!r}, model="THIS FOLDER OR ITS HUB ID")
```

`{MERGED}` names the files of the adapters with their SHA-256. What follows is the card that was published with them;
the files that it names lie beside the adapters, which `attach({record.name!r}).fetch()` brings.

{of_adapters.text.strip()}
"""
