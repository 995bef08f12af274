"""Publishes a model with adapters as its adapters, with a name of its base that others can find.

Loaded on its original base they are the trained model, or the publication is refused.
"""

import json
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from train_func.errors import InvalidInput
from train_func.published_model import ADAPTERS, RULES
from train_func.text import listed
from train_func.wire.records import RunRecord
from train_func.worker.publish.card import fields_of, hub_id, public
from train_func.worker.training.loader import undisturbed
from train_func.worker.training.weights import has_adapters

BASE = "base_model_name_or_path"
CHANGE_BASE = ("pissa", "olora", "corda", "lora_ga")  # how init_lora_weights begins that subtract themselves from it
_starts: WeakKeyDictionary[nn.Module, Path] = WeakKeyDictionary()


def save_adapters(model: Any, folder: Path, record: RunRecord) -> None:
    """Calls ``model.save_pretrained(folder)``; the name of an adapters' base is no path of this machine."""
    if not has_adapters(model):
        model.save_pretrained(folder)
        return
    with _with_local_base(model), undisturbed():
        if start := _starts.get(model):
            model.save_pretrained(folder, path_initial_model_for_weight_conversion=str(start))
        else:
            model.save_pretrained(folder)
    if generation := getattr(model.get_base_model(), "generation_config", None):
        with suppress(ValueError):  # one that its own base has wrong
            generation.save_pretrained(folder)
    for name, config in model.peft_config.items():
        path = (folder if name == "default" else folder / name) / ADAPTERS
        plain = {**json.loads(path.read_text()), BASE: _public_base(getattr(config, BASE), record)}
        path.write_text(json.dumps(plain, indent=2, sort_keys=True))


@contextmanager
def _with_local_base(model: Any) -> Iterator[None]:
    """Makes peft look up the vocabulary size of the base in the loaded files, and not on the Hub."""
    configs = list(model.peft_config.values())
    names = [getattr(config, BASE) for config in configs]
    try:
        for config in configs:
            setattr(config, BASE, getattr(model.get_base_model(), "name_or_path", None))
        yield
    finally:
        for config, name in zip(configs, names, strict=True):
            setattr(config, BASE, name)


def _public_base(name: str | None, record: RunRecord) -> str | None:
    """Returns the Hub id of the base, or its address; for a folder only its name, which is no Hub id."""
    if name is None:
        return None
    is_of_task, fingerprint = name == fields_of(record).get("model"), record.fingerprints.get("model", "")
    if is_of_task and (known := hub_id(name, fingerprint)):
        return known
    shown = str(public(name))
    is_folder = shown != name or (is_of_task and fingerprint and "://" not in shown)
    return f"./{PurePath(shown).name}" if is_folder else shown


def check_all_published(model: nn.Module) -> None:
    """Raises InvalidInput (cause "code") if the published adapters on their base would not be the trained model.

    This is so if weights outside of the published files are trained, or the base is changed.
    """
    if not has_adapters(model):
        return
    from peft import PeftType, get_peft_model_state_dict

    adapted: Any = model
    if any(config.peft_type != PeftType.LORA for config in adapted.peft_config.values()):
        return  # other kinds publish tensors that they make of the trained ones
    for config in adapted.peft_config.values():
        start, kasa = getattr(config, "init_lora_weights", True), getattr(config, "kasa_config", None)
        if start == "loftq" or kasa:
            option = "kasa_config" if kasa else f"init_lora_weights={start!r}"
            raise InvalidInput(
                f"LoraConfig({option}) changes the weights of the base, which are not published: on the base as it is, "
                "the published adapters would be another model than the one that was measured. Leave it out, or train "
                "in a loop over session.steps, and publish the whole model with "
                "session.publish(model.merge_and_unload())",
                cause="code",
            )
    with _with_local_base(adapted):
        states = [get_peft_model_state_dict(adapted, adapter_name=name) for name in adapted.peft_config]
    saved = {tensor.data_ptr() for state in states for tensor in state.values()}
    trained = {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
    if lost := [name for name, tensor in trained.items() if tensor.data_ptr() not in saved]:
        raise InvalidInput(
            f"trained beside the adapters, and not published with them: {listed(lost)}; the metrics would be those of "
            "another model than the published one. Freeze them with requires_grad_(False), name their layers in "
            "modules_to_save of peft's LoraConfig, or train all weights without adapters",
            cause="code",
        )
    if lost := _resized(adapted.get_base_model(), saved):
        raise InvalidInput(
            f"tokens were added to the model, and their weights in {listed(lost)} are not published: peft leaves them "
            "out where one of the embeddings and the head has adapters. Give both of them adapters, or none",
            cause="code",
        )


def take_start(model: nn.Module, folder: Path) -> None:
    """Saves in ``folder``, before the first step, adapters whose start peft has subtracted from the base.

    Published adapters then fit the original base: their start is subtracted from them too.
    """
    if not has_adapters(model) or model in _starts:
        return
    adapted: Any = model
    config = adapted.peft_config.get("default")
    if str(getattr(config, "init_lora_weights", "")).lower().startswith(CHANGE_BASE):
        with _with_local_base(adapted):
            adapted.save_pretrained(folder)
        _starts[model] = folder


def _resized(base: Any, saved: Container[int]) -> list[str]:
    """Returns the layers whose number of tokens differs from the loaded files, and that are not saved."""
    from transformers import AutoConfig

    try:
        before = AutoConfig.from_pretrained(base.name_or_path, **RULES).get_text_config().vocab_size
    except (OSError, ValueError, AttributeError):  # it was made without files
        return []
    ends = [base.get_input_embeddings(), base.get_output_embeddings()]
    return [
        name
        for name, layer in base.named_modules()
        if any(layer is end for end in ends) and len(layer.weight) != before and layer.weight.data_ptr() not in saved
    ]
