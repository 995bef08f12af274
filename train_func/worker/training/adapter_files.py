"""The files of a model that is published: of one with adapters these alone, with a base that can be found."""

import json
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn
from transformers import AutoConfig

from train_func.counted import listed
from train_func.errors import InvalidInput
from train_func.published_model import ADAPTERS, RULES
from train_func.records import RunRecord
from train_func.worker.pod.card_data import fields_of, hub_id, public
from train_func.worker.training.adapted import has_adapters
from train_func.worker.training.randomness import undisturbed

BASE = "base_model_name_or_path"
CHANGE_BASE = ("pissa", "olora", "corda", "lora_ga")  # how init_lora_weights begins that subtract themselves from it
_starts: WeakKeyDictionary[nn.Module, Path] = WeakKeyDictionary()


def save(model: Any, folder: Path, record: RunRecord) -> None:
    """As ``model.save_pretrained(folder)``; adapters name their base without a path of this machine."""
    if not has_adapters(model):
        model.save_pretrained(folder)
        return
    with _with_local_base(model), undisturbed():
        if start := _starts.get(model):
            model.save_pretrained(folder, path_initial_model_for_weight_conversion=str(start))
        else:
            model.save_pretrained(folder)
    if how := getattr(model.get_base_model(), "generation_config", None):
        with suppress(ValueError):  # one that its own base has wrong
            how.save_pretrained(folder)
    for name, of in model.peft_config.items():
        path = (folder if name == "default" else folder / name) / ADAPTERS
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
    """Raises InvalidInput (cause "code") where the published adapters would not be the trained model on its base.

    That is where weights are trained beside them that are published without them, or the base is changed.
    """
    if not has_adapters(model):
        return
    from peft import PeftType, get_peft_model_state_dict

    adapted: Any = model
    if any(of.peft_type != PeftType.LORA for of in adapted.peft_config.values()):
        return  # other kinds publish tensors that they make of the trained ones
    for of in adapted.peft_config.values():
        _check_base_kept(of)
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
    if lost := _resized(adapted.get_base_model(), kept):
        raise InvalidInput(
            f"tokens were added to the model, and their weights in {listed(lost)} are not published: peft leaves them "
            "out where one of the embeddings and the head has adapters. Give both of them adapters, or none",
            cause="code",
        )


def _check_base_kept(config: Any) -> None:
    start, kasa = getattr(config, "init_lora_weights", True), getattr(config, "kasa_config", None)
    if start == "loftq" or kasa:
        given = "kasa_config" if kasa else f"init_lora_weights={start!r}"
        raise InvalidInput(
            f"LoraConfig({given}) changes the weights of the base, which are not published: on the base as it is, the "
            "published adapters would be another model than the one that was measured. Leave it out, or train in a "
            "loop over session.steps, and publish the whole model with session.publish(model.merge_and_unload())",
            cause="code",
        )


def take_start(model: nn.Module, folder: Path) -> None:
    """Keeps in ``folder``, before the first step, adapters of which peft has subtracted the start from the base.

    What is published of them then is adapters of the base as it is: what was trained without that start.
    """
    if not has_adapters(model) or model in _starts:
        return
    adapted: Any = model
    config = adapted.peft_config.get("default")
    if str(getattr(config, "init_lora_weights", "")).lower().startswith(CHANGE_BASE):
        with _with_local_base(adapted):
            adapted.save_pretrained(folder)
        _starts[model] = folder


def _resized(base: Any, kept: Container[int]) -> list[str]:
    """The layers that have other numbers of tokens than in the files that were loaded, and are not published."""
    try:
        before = AutoConfig.from_pretrained(base.name_or_path, **RULES).get_text_config().vocab_size
    except (OSError, ValueError, AttributeError):  # it was made without files
        return []
    ends = [base.get_input_embeddings(), base.get_output_embeddings()]
    return [
        name
        for name, of in base.named_modules()
        if any(of is end for end in ends) and len(of.weight) != before and of.weight.data_ptr() not in kept
    ]
