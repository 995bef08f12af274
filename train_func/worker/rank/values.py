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
    """The result that a function's return value stands for, and what has become of each value that is not JSON."""
    told: list[str] = []
    named = value if isinstance(value, Mapping) else {} if value is None else {RETURNED: value}
    found = _plain(named, "", told)
    return (found if isinstance(found, dict) else {}), told


def _plain(value: Any, name: str, told: list[str], level: int = 0, instead: object = _LEFT_OUT) -> Any:
    what = type(value).__name__
    try:
        if isinstance(value, int) and abs(value) >= LARGEST_INTEGER:
            what = f"an int of {value.bit_length()} bits"
        elif isinstance(value, float) and not math.isfinite(value):
            what, instead = str(float(value)), None
        elif level <= DEEPEST:
            return _of_kind(value, name, told, level, instead)
    except Exception:
        pass  # a foreign object may raise whatever it likes
    told.append(f"{name or 'the result'} ({what}) is {'left out' if instead is _LEFT_OUT else None}")
    return instead


def _of_kind(value: Any, name: str, told: list[str], level: int, instead: object) -> Any:
    match value:
        case None | bool():
            return value
        case str():
            return str(value)
        case int():
            return int(value)
        case float():
            return float(value)
        case PurePath():
            return str(value)
        case datetime.date() | datetime.time():
            return value.isoformat()
        case Mapping():
            return _of_mapping(value, name, told, level)
        case list() | tuple():
            return [_plain(part, f"{name}[{i}]", told, level + 1, None) for i, part in enumerate(value)]
    if is_dataclass(value) and not isinstance(value, type):
        return _of_mapping({own.name: getattr(value, own.name) for own in fields(value)}, name, told, level)
    return _plain(_listed(value), name, told, level + 1, instead)


def _of_mapping(value: Mapping[Any, Any], name: str, told: list[str], level: int) -> dict[str, Any]:
    found = {}
    for key, part in value.items():
        inner = f"{name}.{key}" if name else str(key)
        if not isinstance(key, str | int | float):
            told.append(f"{inner} (its name is of {type(key).__name__}) is left out")
        elif (made := _plain(part, inner, told, level + 1)) is not _LEFT_OUT:
            found[str(key)] = made
    return found


def _listed(value: Any) -> Any:
    """An array, tensor or scalar of numpy, torch or pandas as lists and numbers. Raises TypeError for other objects."""
    if not hasattr(value, "tolist") or math.prod(value.shape) > LARGEST_ARRAY:
        raise TypeError
    return value.tolist()
