"""Weights that are no finite numbers: no checkpoint holds them, and they are not published."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from train_func.counted import counted, listed
from train_func.errors import InvalidInput


def check(modules: Iterable[nn.Module], when: str, *, whole: bool = False) -> None:
    """Raises InvalidInput (cause "divergence") where weights of one of the modules are not finite; ``when`` is shown.

    ``whole``: weights that are not trained are looked at too, of which there may be billions below an adapter. They
    may hold infinity, as a mask does, and so may a buffer that is no running statistic.
    """
    for module in modules:
        _refuse(faults_of(module, whole=whole), type(module).__name__, when)


def check_tensors(tensors: Mapping[str, Any], when: str) -> list[str]:
    """The same of a state dict, which does not say what is trained: refuses nan, and returns what holds infinity."""
    found = _not_finite(tensors)
    _refuse({name: word for name, word in found.items() if word == "nan"}, "the state dict", when)
    return [name for name, word in found.items() if word != "nan"]


def _refuse(faults: Mapping[str, str], owner: str, when: str) -> None:
    if faults:
        raise InvalidInput(f"{when}{told(faults, owner)}. They are neither saved nor published", cause="divergence")


def told(faults: Mapping[str, str], owner: str) -> str:
    """What is not finite, as a sentence without its point."""
    names = listed([f"{name} ({word})" for name, word in faults.items()])
    return f"{counted(len(faults), 'tensor')} of {owner} {'is' if len(faults) == 1 else 'are'} not finite: {names}"


def faults_of(module: nn.Module, *, whole: bool = False) -> dict[str, str]:
    """The weights and running statistics that are not finite, by name: "nan" or "infinity"."""
    parameters = {name: of for name, of in module.named_parameters() if whole or of.requires_grad}
    statistics = {
        f"{path}.{name}" if path else name: value
        for path, layer in module.named_modules()
        if isinstance(layer, _NormBase)
        for name, value in (("running_mean", layer.running_mean), ("running_var", layer.running_var))
    }
    frozen = {name for name, of in parameters.items() if not of.requires_grad}
    found = _not_finite({**parameters, **statistics})
    return {name: word for name, word in found.items() if word == "nan" or name not in frozen}


def _not_finite(tensors: Mapping[str, Any]) -> dict[str, str]:
    """Those that hold nan or infinity, by name, and which of the two. The device is asked once."""
    bounds = {name: bound for name, value in tensors.items() if (bound := _bounds(value)) is not None}
    seen: dict[str, list[bool]] = {}
    for device in {of.device for of in bounds.values()}:
        there = {name: of for name, of in bounds.items() if of.device == device}
        flags = torch.stack([torch.stack([of.isnan().any(), of.isinf().any()]) for of in there.values()]).tolist()
        seen |= dict(zip(there, flags, strict=True))
    return {name: "nan" if seen[name][0] else "infinity" for name in bounds if any(seen[name])}


def _bounds(value: Any) -> torch.Tensor | None:
    """The lowest and the highest number, both nan where one is; None for what holds no floating-point numbers."""
    if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
        return None
    local: Any = value.detach()
    if hasattr(local, "to_local"):  # this rank's part of one that is sharded
        local = local.to_local()
    if local.layout != torch.strided:
        local = local._values() if local.layout == torch.sparse_coo else local.values()
    if local.is_complex():
        local = torch.view_as_real(local)
    if local.is_meta or not local.numel():
        return None
    if local.element_size() == 1:  # eight bits: no lowest and highest of those
        local = local.float()
    return torch.stack(torch.aminmax(local))
