"""Values of metrics, converted from numpy and torch to plain Python."""

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch

from train_func.errors import InvalidInput


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


def reported(step: Any, metrics: Mapping[str, Any]) -> tuple[int, dict[str, float | int]]:
    """What ``session.report`` was given, as plain numbers; nan and inf, which tell of a training that diverges, too.

    Raises:
        InvalidInput: (cause "code") naming all that are no numbers.
    """
    given = "session.report was given"
    numbers, whole = {name: _number(value) for name, value in metrics.items()}, _number(step)
    found = {name: number for name, number in numbers.items() if number is not None}
    faults = [
        f"{given} {name}={_shown(metrics[name])}: a number is expected, or a tensor or array that holds one; print a "
        "text, and give session.publish a file with what is more than a number"
        for name in metrics
        if name not in found
    ]
    if whole is None or whole % 1:
        faults.insert(0, f"{given} step={_shown(step)}: the number of the step is expected, such as step.number")
    if whole is None or faults:
        raise InvalidInput(faults, cause="code")
    return int(whole), found


def _number(value: Any) -> float | int | None:
    """None where it is no number."""
    if isinstance(value, torch.Tensor | np.ndarray | np.generic) and math.prod(value.shape) == 1:
        value = value.item()
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else None


def _shown(value: Any) -> str:
    kind, shape = type(value).__name__, getattr(value, "shape", None)
    return f"a {kind} of shape {tuple(shape)}" if isinstance(shape, tuple) else f"{value!r:.60} ({kind})"
