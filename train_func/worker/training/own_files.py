"""What an own loop publishes: a module or its state dict as safetensors, a folder, or files.

Extra state of a module (``get_extra_state``) that is no tensor is plain JSON beside its weights.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import _remove_duplicate_names, save_file, save_model
from torch import nn

from train_func.counted import listed
from train_func.errors import InvalidInput
from train_func.records import RunRecord
from train_func.result import name_fault
from train_func.worker.training import adapter_files, finite, world

WEIGHTS, EXTRA = "model.safetensors", "extra_state.json"
ALLOWED = (
    "a Trainer, a torch.nn.Module, a state dict, an object with save_pretrained, or a file, a folder or a list of them "
    "is expected"
)


def writer(what: object, record: RunRecord) -> tuple[Callable[[Path], None], bool]:
    """What writes ``what`` into a folder, and whether that is a whole model.

    Raises:
        InvalidInput: (cause "code") it cannot be published, or a file of it is not there; (cause "divergence") its
            weights are not finite.
    """
    if isinstance(what, nn.Module):
        finite.check([bare(what)], "session.publish: ", whole=True)
        return _of_module(bare(what), record), True
    if isinstance(what, Mapping):
        tensors = _tensors(what)
        if infinite := finite.check_tensors(tensors, "session.publish: "):
            world.note(f"the published state dict holds infinity, which only a mask should: {listed(infinite)}")
        return (lambda folder: save_file(tensors, folder / WEIGHTS)), True
    if isinstance(what, (str, Path)):
        return _copies([Path(what)]), False
    if isinstance(what, (list, tuple)) and what and all(isinstance(one, (str, Path)) for one in what):
        return _copies([Path(one) for one in what]), False
    if callable(save := getattr(what, "save_pretrained", None)):
        return (lambda folder: _save(save, folder)), False
    raise _refused(f"session.publish was given {type(what).__name__}: {ALLOWED}. Save it to a file, and publish that")


def _save(save: Callable[[Path], object], folder: Path) -> None:
    save(folder)


def bare(module: nn.Module) -> nn.Module:
    """The module inside of what wraps it for several ranks, or for torch.compile."""
    while True:
        inner = getattr(module, "_orig_mod", None)
        if inner is None and isinstance(module, nn.parallel.DistributedDataParallel | nn.DataParallel):
            inner = module.module
        if not isinstance(inner, nn.Module):
            return module
        module = inner


def _of_module(module: nn.Module, record: RunRecord) -> Callable[[Path], None]:
    if callable(getattr(module, "save_pretrained", None)):  # transformers, peft: with their configuration
        return lambda folder: adapter_files.save(module, folder, record)
    state = module.state_dict()
    if faults := state_faults(state):
        raise _refused([f"session.publish was given {type(module).__name__}: {fault}" for fault in faults])
    extra = {name: value for name, value in state.items() if not isinstance(value, torch.Tensor)}

    def write(folder: Path) -> None:
        if extra:
            (folder / EXTRA).write_text(json.dumps(extra, indent=1) + "\n")
        if extra or _has_parts(state):
            save_file(_copied(state), folder / WEIGHTS)
        else:
            save_model(module, str(folder / WEIGHTS))  # shared tensors are stored once

    return write


def state_faults(state: Mapping[str, Any]) -> list[str]:
    """What of a module's state dict cannot be published, and what to do; empty when all can be."""
    return [f"its {name} is {fault}" for name, value in state.items() if (fault := _fault_of(value))]


def _fault_of(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        dense = "publish a state dict in which it is dense"
        if value.is_quantized:
            return f"a quantised tensor, which safetensors cannot hold: {dense} (dequantize()), or write it to a file"
        sparse = f"a sparse tensor, which safetensors cannot hold: {dense} (to_dense()), or write it to a file"
        return sparse if value.layout != torch.strided else ""
    try:
        is_plain = bool(json.loads(json.dumps(value, allow_nan=False)) == value)
    except (TypeError, ValueError, RecursionError):
        is_plain = False
    if is_plain:
        return ""
    return (
        f"an extra state of type {type(value).__name__}, which is neither a tensor nor plain JSON: let get_extra_state "
        "return a tensor, or a dict of numbers, texts, lists and dicts; or publish a state dict without it, and write "
        "it to a file"
    )


def _has_parts(state: Mapping[str, torch.Tensor]) -> bool:
    """Whether tensors are parts of one that none of them is whole, which save_model refuses."""
    try:
        _remove_duplicate_names(dict(state))
    except RuntimeError:
        return True
    return False


def _copied(state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Its tensors, copied, because safetensors refuses tensors that share memory."""
    tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    return {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}


def _tensors(state: Mapping[Any, Any]) -> dict[str, torch.Tensor]:
    others = [name for name, value in state.items() if not (isinstance(name, str) and isinstance(value, torch.Tensor))]
    if others or not state:
        named = ", ".join(f"{name!r} ({type(state[name]).__name__})" for name in others[:5])
        raise _refused(
            f"session.publish was given a dict with {named or 'nothing'}: of a state dict, tensors by name are "
            "expected; give the numbers beside it as metrics=..., and return other values or write them to a file"
        )
    if faults := state_faults(state):
        raise _refused([f"session.publish was given a state dict: {fault}" for fault in faults])
    return _copied(state)


def _copies(paths: list[Path]) -> Callable[[Path], None]:
    """Copies of files, each under its name, and of what folders hold, each under its name from there."""
    found: dict[str, Path] = {}
    for path in paths:
        if path.is_dir():
            inside = [of for of in sorted(path.rglob("*")) if of.is_file()]
            found |= {of.relative_to(path).as_posix(): of for of in inside}
        elif path.is_file():
            found[path.name] = path
        else:
            raise _refused(f"session.publish was given {str(path)!r}: no file or folder is there")
    hidden = [name for name in found if any(part.startswith(".") for part in name.split("/"))]
    wanted = {name: path for name, path in found.items() if name not in hidden}
    if faults := [fault for name in wanted if (fault := name_fault(name, wanted))]:
        raise _refused(faults)
    if not wanted:
        raise _refused(f"session.publish was given {', '.join(map(str, paths))}: there is no file in it")

    def write(folder: Path) -> None:
        for name, path in wanted.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, folder / name)

    return write


def _refused(faults: str | list[str]) -> InvalidInput:
    return InvalidInput(faults, cause="code")
