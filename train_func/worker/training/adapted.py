"""Models with adapters of peft: what is saved of them is the adapters; their base stays as it was loaded."""

import hashlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

_hashed: WeakKeyDictionary[nn.Module, tuple[list[tuple[str, int, int]], str]] = WeakKeyDictionary()


def has_adapters(model: nn.Module) -> bool:
    """Whether peft has put adapters beside frozen weights, which nothing trains."""
    peft: Any = sys.modules.get("peft")  # where it was not imported, no model is of it
    return peft is not None and isinstance(model, peft.PeftModel) and any(True for _ in _base(model))


def _base(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((name, of) for name, of in model.named_parameters(remove_duplicate=False) if not of.requires_grad)


def own_weights(model: nn.Module) -> dict[str, Any]:
    """The model's state dict; of one with adapters without its frozen weights."""
    state: dict[str, Any] = model.state_dict()
    if not has_adapters(model):
        return state
    frozen = {name for name, _ in _base(model)}
    return {name: of for name, of in state.items() if name not in frozen}


def load_own_weights(model: nn.Module, weights: Mapping[str, Any]) -> None:
    """The inverse of ``own_weights``; raises RuntimeError, as torch does, where names are missing or too many."""
    if not has_adapters(model):
        model.load_state_dict(weights)
        return
    found = model.load_state_dict(weights, strict=False)
    missing = set(found.missing_keys) - {name for name, _ in _base(model)}
    if wrong := sorted(missing) + found.unexpected_keys:
        raise RuntimeError(f"the adapters are not those of the model: {', '.join(wrong[:5])}")


def base_sha256(model: nn.Module) -> str:
    """Of the frozen weights: adapters that were trained on others are worth nothing on these.

    Billions of them are hashed in many seconds, so once only, until they lie elsewhere or an operation changes them.
    """
    base = sorted(_base(model), key=lambda named: named[0])
    state = [(name, value.data_ptr(), value._version) for name, value in base]
    if (held := _hashed.get(model)) and held[0] == state:
        return held[1]
    digest = hashlib.sha256()
    for name, value in base:
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    _hashed[model] = state, digest.hexdigest()
    return digest.hexdigest()
