"""Publishes for a loop of the function's own: a module or its state dict as safetensors, a folder, or files.

Extra state of a module (``get_extra_state``) that is no tensor becomes JSON beside its weights. A model with adapters
is published as its adapters, with a name of its base that others can find.
"""

import json
import shutil
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from typing import Any
from weakref import WeakKeyDictionary

import torch
from safetensors.torch import save_file, save_model
from torch import nn

from train_func.errors import InvalidInput
from train_func.published_model import ADAPTERS, RULES
from train_func.text import listed
from train_func.wire.records import RunRecord
from train_func.wire.result import name_fault
from train_func.worker.publish.card import fields_of, hub_id, public
from train_func.worker.rank import world
from train_func.worker.rank.folders import files_of
from train_func.worker.training import weights
from train_func.worker.training.loader import undisturbed
from train_func.worker.training.weights import has_adapters, state_faults

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


WEIGHTS, EXTRA = "model.safetensors", "extra_state.json"
PUBLISHABLE = (
    "a Trainer, a torch.nn.Module, a state dict, an object with save_pretrained, or a file, a folder or a list of them "
    "is expected"
)


def writer(what: object, record: RunRecord) -> tuple[Callable[[Path], object], bool]:
    """Returns a function that writes ``what`` into a folder, and whether it is a whole model.

    Raises:
        InvalidInput: (cause "code") it cannot be published, or one of its files does not exist; (cause "divergence")
            its weights are not finite.
    """
    if isinstance(what, nn.Module):
        weights.check_finite([bare(what)], "session.publish: ", whole=True)
        return _of_module(bare(what), record), True
    if isinstance(what, Mapping):
        tensors = _tensors(what)
        if infinite := weights.check_finite_tensors(tensors, "session.publish: "):
            world.note(f"the published state dict holds infinity, which only a mask should: {listed(infinite)}")
        return (lambda folder: save_file(tensors, folder / WEIGHTS)), True
    paths: Any = what if isinstance(what, (list, tuple)) else [what]
    if paths and all(isinstance(path, (str, Path)) for path in paths):
        return _copies([Path(path) for path in paths]), False
    if callable(save := getattr(what, "save_pretrained", None)):
        return save, False
    raise _refused(
        f"session.publish was given {type(what).__name__}: {PUBLISHABLE}. Save it to a file, and publish that"
    )


def bare(module: nn.Module) -> nn.Module:
    """Returns the module inside its wrappers for several ranks or for torch.compile."""
    while True:
        inner = getattr(module, "_orig_mod", None)
        if inner is None and isinstance(module, nn.parallel.DistributedDataParallel | nn.DataParallel):
            inner = module.module
        if not isinstance(inner, nn.Module):
            return module
        module = inner


def _of_module(module: nn.Module, record: RunRecord) -> Callable[[Path], None]:
    if callable(getattr(module, "save_pretrained", None)):  # transformers, peft: with their configuration
        return lambda folder: save_adapters(module, folder, record)
    state = module.state_dict()
    if faults := state_faults(state):
        raise _refused([f"session.publish was given {type(module).__name__}: {fault}" for fault in faults])
    extra = {name: value for name, value in state.items() if not isinstance(value, torch.Tensor)}

    def write(folder: Path) -> None:
        if extra:
            (folder / EXTRA).write_text(json.dumps(extra, indent=1) + "\n")
            save_file(_copied(state), folder / WEIGHTS)
            return
        try:
            save_model(module, str(folder / WEIGHTS))  # shared tensors are stored once
        except RuntimeError:  # tensors are parts of one that none of them is whole, which it refuses
            save_file(_copied(state), folder / WEIGHTS)

    return write


def _copied(state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Returns copies of the tensors, because safetensors refuses tensors that share memory."""
    tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    return {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}


def _tensors(state: Mapping[Any, Any]) -> dict[str, torch.Tensor]:
    wrong = [name for name, value in state.items() if not (isinstance(name, str) and isinstance(value, torch.Tensor))]
    if wrong or not state:
        shown = ", ".join(f"{name!r} ({type(state[name]).__name__})" for name in wrong[:5])
        raise _refused(
            f"session.publish was given a dict with {shown or 'nothing'}: of a state dict, tensors by name are "
            "expected; give the numbers beside it as metrics=..., and return other values or write them to a file"
        )
    if faults := state_faults(state):
        raise _refused([f"session.publish was given a state dict: {fault}" for fault in faults])
    return _copied(state)


def _copies(paths: list[Path]) -> Callable[[Path], None]:
    """Returns a function that copies files under their names, and the content of folders under its paths in them."""
    files: dict[str, Path] = {}
    for path in paths:
        if path.is_dir():
            files |= {name: path / name for name in files_of(path)}
        elif path.is_file():
            files[path.name] = path
        else:
            raise _refused(f"session.publish was given {str(path)!r}: no file or folder is there")
    files = {name: path for name, path in files.items() if not any(part.startswith(".") for part in name.split("/"))}
    if faults := [fault for name in files if (fault := name_fault(name, files))]:
        raise _refused(faults)
    if not files:
        raise _refused(f"session.publish was given {', '.join(map(str, paths))}: there is no file in it")

    def write(folder: Path) -> None:
        for name, path in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, folder / name)

    return write


def _refused(faults: str | list[str]) -> InvalidInput:
    return InvalidInput(faults, cause="code")
