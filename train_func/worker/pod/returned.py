"""Values of a function as plain JSON: what it returned, and metrics of its own; what is not JSON is named and left out.

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
    """The result that a function's return value stands for, and what of it is left out, each as ``name (type)``.

    A number that is not finite is named too, and None in the result.
    """
    left_out: list[str] = []
    named = value if isinstance(value, Mapping) else {} if value is None else {RETURNED: value}
    found = _plain(named, "", left_out)
    return (found if isinstance(found, dict) else {}), left_out


def _plain(value: Any, name: str, left_out: list[str], level: int = 0) -> Any:
    try:
        if level <= DEEPEST:
            return _of_kind(value, name, left_out, level)
    except Exception:
        pass  # a foreign object may raise whatever it likes
    left_out.append(f"{name or 'the result'} ({type(value).__name__})")
    return _LEFT_OUT


def _of_kind(value: Any, name: str, left_out: list[str], level: int) -> Any:
    match value:
        case None | bool():
            return value
        case str():
            return str(value)
        case int() if abs(value) < LARGEST_INTEGER:
            return int(value)
        case int():
            left_out.append(f"{name} (an int of {value.bit_length()} bits)")
            return _LEFT_OUT
        case float() if math.isfinite(value):
            return float(value)
        case float():
            left_out.append(f"{name} ({float(value)})")
            return None
        case PurePath():
            return str(value)
        case datetime.date() | datetime.time():
            return value.isoformat()
        case Mapping():
            return _of_mapping(value, name, left_out, level)
        case list() | tuple():
            made = (_plain(part, f"{name}[{i}]", left_out, level + 1) for i, part in enumerate(value))
            return [None if part is _LEFT_OUT else part for part in made]
    if is_dataclass(value) and not isinstance(value, type):
        return _of_mapping({own.name: getattr(value, own.name) for own in fields(value)}, name, left_out, level)
    return _plain(_listed(value), name, left_out, level + 1)


def _of_mapping(value: Mapping[Any, Any], name: str, left_out: list[str], level: int) -> dict[str, Any]:
    found = {}
    for key, part in value.items():
        inner = f"{name}.{key}" if name else str(key)
        if not isinstance(key, str | int | float):
            left_out.append(f"{inner} (its name is of {type(key).__name__})")
        elif (made := _plain(part, inner, left_out, level + 1)) is not _LEFT_OUT:
            found[str(key)] = made
    return found


def _listed(value: Any) -> Any:
    """An array, tensor or scalar of numpy, torch or pandas as lists and numbers. Raises TypeError for other objects."""
    if not hasattr(value, "tolist") or math.prod(value.shape) > LARGEST_ARRAY:
        raise TypeError
    return value.tolist()
