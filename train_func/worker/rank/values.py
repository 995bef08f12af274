"""Values of a function as plain JSON: what it returned, and metrics of its own; what is not JSON is named.

Such a value is left out. In a list, and where a number is not finite, None stands in its place.

Never raises: how a training ends does not depend on what is returned. Loads neither numpy nor torch.
"""

import datetime
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import PurePath
from typing import Any

LARGEST_ARRAY = 1_000_000  # values of one array or tensor; what is larger is a file
LARGEST_INTEGER = 10**4_000  # Python writes and reads no longer ones as JSON
DEEPEST = 50  # levels; a value may hold itself
RETURNED = "returned"  # the name of a value that is no dict
_LEFT_OUT = object()


def plain_result(value: object) -> tuple[dict[str, Any], list[str]]:
    """Returns the result that a return value stands for, and what has become of each value that is not JSON."""
    losses: list[str] = []
    mapping = value if isinstance(value, Mapping) else {} if value is None else {RETURNED: value}
    plain = _plain(mapping, "", losses)
    return (plain if isinstance(plain, dict) else {}), losses


def _plain(value: Any, name: str, losses: list[str], level: int = 0, instead: object = _LEFT_OUT) -> Any:
    """Converts one value; ``name`` leads to it, and ``instead`` stands in its place where it is not JSON."""
    kind = type(value).__name__
    try:
        if isinstance(value, int) and abs(value) >= LARGEST_INTEGER:
            kind = f"an int of {value.bit_length()} bits"
        elif isinstance(value, float) and not math.isfinite(value):
            kind, instead = str(float(value)), None
        elif level <= DEEPEST:
            return _convert(value, name, losses, level, instead)
    except Exception:
        pass  # a foreign object may raise whatever it likes
    losses.append(f"{name or 'the result'} ({kind}) is {'left out' if instead is _LEFT_OUT else None}")
    return instead


def _convert(value: Any, name: str, losses: list[str], level: int, instead: object) -> Any:
    match value:
        case None | bool():
            return value
        case str() | PurePath():
            return str(value)
        case int():
            return int(value)
        case float():
            return float(value)
        case datetime.date() | datetime.time():
            return value.isoformat()
        case list() | tuple():
            return [_plain(part, f"{name}[{i}]", losses, level + 1, None) for i, part in enumerate(value)]
    if is_dataclass(value) and not isinstance(value, type):
        value = {item.name: getattr(value, item.name) for item in fields(value)}
    if not isinstance(value, Mapping):  # an array, tensor or scalar of numpy, torch or pandas
        if not hasattr(value, "tolist") or math.prod(value.shape) > LARGEST_ARRAY:
            raise TypeError
        return _plain(value.tolist(), name, losses, level + 1, instead)
    plain = {}
    for key, part in value.items():
        inner = f"{name}.{key}" if name else str(key)
        if not isinstance(key, str | int | float):
            losses.append(f"{inner} (its name is of {type(key).__name__}) is left out")
            continue
        converted = _plain(part, inner, losses, level + 1)
        if converted is not _LEFT_OUT:
            plain[str(key)] = converted
    return plain
