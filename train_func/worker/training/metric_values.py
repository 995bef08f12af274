"""Values of metrics, converted from numpy and torch to plain Python, and to JSON."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def to_python(value: Any) -> Any:
    """Tensors, arrays and tuples as numbers and lists, also inside lists and dicts; any other value unchanged."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().float().numpy() if value.dtype == torch.bfloat16 else value.detach().cpu().numpy()
    if isinstance(value, (np.generic, np.ndarray)):
        return to_python(value.tolist())
    if isinstance(value, Mapping):
        return {str(name): to_python(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_python(part) for part in value]
    return value


def to_json(value: Any) -> Any:
    """``to_python(value)`` with null for numbers that are not finite, and text for types that JSON lacks."""
    match to_python(value):
        case dict() as parts:
            return {name: to_json(part) for name, part in parts.items()}
        case list() as parts:
            return [to_json(part) for part in parts]
        case None | bool() | int() | str() as found:
            return found
        case float() as number:
            return number if math.isfinite(number) else None
        case other:
            return str(other)
