"""The files of a model that is published: of one with adapters these alone, with a base that can be found."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any

from torch import nn

from train_func.counted import listed
from train_func.errors import InvalidInput
from train_func.records import RunRecord
from train_func.worker.pod.card_data import fields_of, hub_id, public
from train_func.worker.training.adapted import has_adapters

CONFIG, BASE = "adapter_config.json", "base_model_name_or_path"


def save(model: Any, folder: Path, record: RunRecord) -> None:
    """As ``model.save_pretrained(folder)``; adapters name their base without a path of this machine."""
    if not has_adapters(model):
        model.save_pretrained(folder)
        return
    with _with_local_base(model):
        model.save_pretrained(folder)
    for name, of in model.peft_config.items():
        path = (folder if name == "default" else folder / name) / CONFIG
        config = {**json.loads(path.read_text()), BASE: _public_base(getattr(of, BASE), record)}
        path.write_text(json.dumps(config, indent=2, sort_keys=True))


@contextmanager
def _with_local_base(model: Any) -> Iterator[None]:
    """peft looks up how large the vocabulary of the base is: in the files that were loaded, and not on the Hub."""
    configs = list(model.peft_config.values())
    named = [getattr(of, BASE) for of in configs]
    try:
        for of in configs:
            setattr(of, BASE, getattr(model.get_base_model(), "name_or_path", None))
        yield
    finally:
        for of, name in zip(configs, named, strict=True):
            setattr(of, BASE, name)


def _public_base(name: str | None, record: RunRecord) -> str | None:
    """The id of the base on the Hub, or its address; of a folder the name alone, which is no id of the Hub."""
    if name is None:
        return None
    is_of_task, fingerprint = name == fields_of(record).get("model"), record.fingerprints.get("model", "")
    if is_of_task and (known := hub_id(name, fingerprint)):
        return known
    shown = str(public(name))
    is_folder = shown != name or (is_of_task and fingerprint and "://" not in shown)
    return f"./{PurePath(shown).name}" if is_folder else shown


def check_all_published(model: nn.Module) -> None:
    """Raises InvalidInput (cause "code") where weights are trained beside adapters that are published without them."""
    if not has_adapters(model):
        return
    from peft import PeftType, get_peft_model_state_dict

    adapted: Any = model
    if any(of.peft_type != PeftType.LORA for of in adapted.peft_config.values()):
        return  # other kinds publish tensors that they make of the trained ones
    with _with_local_base(adapted):
        states = [get_peft_model_state_dict(adapted, adapter_name=name) for name in adapted.peft_config]
    kept = {of.data_ptr() for state in states for of in state.values()}
    left = [name for name, of in model.named_parameters() if of.requires_grad and of.data_ptr() not in kept]
    if left:
        raise InvalidInput(
            f"trained beside the adapters, and not published with them: {listed(left)}; the metrics would be those of "
            "another model than the published one. Freeze them with requires_grad_(False), name their layers in "
            "modules_to_save of peft's LoraConfig, or train all weights without adapters",
            cause="code",
        )
