"""Publishes for a loop of the function's own: a module or its state dict as safetensors, a folder, or files.

Extra state of a module (``get_extra_state``) that is no tensor becomes JSON beside its weights.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file, save_model
from torch import nn

from train_func.errors import InvalidInput
from train_func.text import listed
from train_func.wire.records import RunRecord
from train_func.wire.result import name_fault
from train_func.worker.publish.adapters import save_adapters
from train_func.worker.rank import world
from train_func.worker.rank.folders import files_of
from train_func.worker.training import weights
from train_func.worker.training.weights import state_faults

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
