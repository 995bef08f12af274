"""Plain: metrics as plain Python values, and as JSON has them."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def plain(value: Any) -> Any:
    """Numbers, text, lists and dicts of what numpy, torch and tuples held; anything else as it is."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().float().numpy() if value.dtype == torch.bfloat16 else value.detach().cpu().numpy()
    if isinstance(value, (np.generic, np.ndarray)):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return value


def as_json(value: Any) -> Any:
    """What ``plain`` gives, with null for what is not finite, and text for what JSON does not have."""
    match plain(value):
        case dict() as parts:
            return {name: as_json(part) for name, part in parts.items()}
        case list() as parts:
            return [as_json(part) for part in parts]
        case None | bool() | int() | str() as found:
            return found
        case float() as number:
            return number if math.isfinite(number) else None
        case other:
            return str(other)
