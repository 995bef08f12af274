"""Published adapters: the base model that they belong to, brought and verified, and both as one model."""

import json
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path, PurePath

from train_func.client.extras import pip_install
from train_func.client.waiting_notice import hinted
from train_func.errors import InvalidInput
from train_func.layout import CARD, MODEL_MANIFEST, PIPELINE
from train_func.published_model import ADAPTERS, are_causal, merged, object_in, options_of, parts_of
from train_func.records import RunRecord
from train_func.text import shown

MERGED = "merged.json"  # beside a merged model: of which adapters it is made
LIMIT_SECONDS = 3600  # a large base model may have to be downloaded


def base_of(record: RunRecord, adapters: Path) -> Path:
    """The folder of the model that the run's adapters were trained on, brought to this machine where it is not here.

    ``adapters``: their fetched folder.

    Raises:
        InvalidInput: (cause "model") it cannot be found or has changed since, or is no causal language model; peft is
            not installed.
    """
    if find_spec("peft") is None:
        raise InvalidInput(f"{adapters}: putting adapters on their model needs peft: {pip_install('local')}")
    _check_causal(adapters)
    task = record.run.task.to_dict() if record.run.task else {}
    request = {"model": task["model"], "revision": task["model_revision"], "store": record.store}

    def say() -> None:
        line = f"{record.name}: still bringing {task['model']}, the model that its adapters belong to, to this machine"
        print(shown(line), flush=True)

    try:
        with hinted(say):
            done = subprocess.run(
                [sys.executable, "-m", "train_func.worker", "base"],
                input=json.dumps(request) + "\n",
                capture_output=True,
                text=True,
                timeout=LIMIT_SECONDS,
            )
    except subprocess.TimeoutExpired:
        raise InvalidInput(
            f"{task['model']}, on which the adapters of {record.name} were trained, was not here within "
            f"{LIMIT_SECONDS} s; try again: files of the Hub that have arrived are kept",
            cause="model",
        ) from None
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        evidence = "\n".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-15:])
        raise InvalidInput(f"the search for {task['model']} failed (exit code {done.returncode}):\n{evidence}")
    answer = json.loads(lines[-1])
    if faults := answer.get("faults"):
        raise InvalidInput([fault["message"] for fault in faults], cause=faults[0]["cause"])
    expected = record.fingerprints.get("model", answer["fingerprint"])
    if answer["fingerprint"] != expected:
        raise InvalidInput(
            f"{task['model']}, on which the adapters of {record.name} were trained, has changed since: its fingerprint "
            f"was {expected} and is {answer['fingerprint']}; put back the model that was trained on",
            cause="model",
        )
    return Path(answer["folder"])


def _check_causal(adapters: Path) -> None:
    """The heads of other models are published neither with their adapters nor with their base."""
    if not are_causal(adapters):
        kind = object_in(adapters / ADAPTERS).get("task_type")
        raise InvalidInput(
            f"{adapters}: adapters of task_type {kind!r}, which the function has made itself; load() and "
            "fetch('merged') take those of causal language models alone. fetch() returns the folder: load the model "
            "that the function has loaded, and put them on it with peft's PeftModel.from_pretrained(model, folder)",
            cause="model",
        )


def write_merged(record: RunRecord, adapters: Path, to: Path, *, is_ours: bool) -> Path:
    """Writes the base model with the adapters in its weights to ``to``, whole or not at all; needs torch.

    ``is_ours``: no one has named the folder; a merged model of other adapters in it gives way to this one.

    Raises:
        InvalidInput: as ``options_of``, ``base_of`` and ``merged``; or ``to`` holds something else, and stays as it is.
    """
    made_of = {"run": record.name, "adapters": json.loads((adapters / MODEL_MANIFEST).read_text())["files"]}
    held = object_in(to / MERGED)
    if held == made_of:
        return to
    if not _is_free(to) and not (is_ours and held):
        raise InvalidInput(f"{to} holds something else: name a folder that is new or empty, as to=...")
    # A loop of one's own publishes no pipeline; adapters without one are of a language model.
    options = options_of(adapters) if (adapters / PIPELINE).exists() else {"task": "text-generation"}
    kind, parts = parts_of(adapters, options["task"])
    model = merged(kind, base_of(record, adapters), adapters)
    if "eos_token_id" in options:  # where its answers end, for those who generate without this package
        model.generation_config.eos_token_id = options["eos_token_id"]
    to.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=to.parent, prefix=".train_func-merge-") as staging:
        folder = Path(staging) / "model"
        model.save_pretrained(folder)
        for part in parts.values():
            part.save_pretrained(folder)
        if (adapters / PIPELINE).exists():
            shutil.copyfile(adapters / PIPELINE, folder / PIPELINE)
        (folder / CARD).write_text(_card(record, adapters, options["task"]), encoding="utf-8")
        (folder / MERGED).write_text(json.dumps(made_of))
        if held:
            to.rename(Path(staging) / "before")
        folder.rename(to)
    return to


def _is_free(folder: Path) -> bool:
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))


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
