"""Values of a function as plain JSON: its return value, and metrics of its own; values that are not JSON are named.

Such a value is left out, and so is one whose name is the text of another's; an item of a list, and a number that is not
finite, becomes None.

Converting never raises, so the end of a training does not depend on the return value. Loads neither numpy nor torch.
"""

import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from numbers import Integral, Real
from pathlib import PurePath
from typing import Any

from train_func.errors import InvalidInput
from train_func.text import listed

LARGEST_ARRAY = 1_000_000  # values of one array or tensor; what is larger is a file
LARGEST_INTEGER = 10**4_000  # Python writes and reads no longer ones as JSON
DEEPEST = 50  # levels; a value may hold itself
RETURNED = "returned"  # the name of a value that is no dict
_LEFT_OUT = object()


def plain_result(value: object) -> tuple[dict[str, Any], list[str]]:
    """Returns the result for a return value, and a note on each value that is not JSON."""
    left_out: list[str] = []
    mapping = value if isinstance(value, Mapping) else {} if value is None else {RETURNED: value}
    plain = _plain(mapping, "", left_out)
    return (plain if isinstance(plain, dict) else {}), left_out


def left_out_note(left_out: Sequence[str]) -> str:
    """Returns one note on the values that are not JSON, from the notes on each; empty if there are none."""
    reason = "because metrics and results are stored as JSON; session.publish, or a file, keeps other values"
    return f"{listed(left_out)}, {reason}" if left_out else ""


def _plain(value: Any, name: str, left_out: list[str], level: int = 0, instead: object = _LEFT_OUT) -> Any:
    """Converts one value; ``name``: its place in messages; ``instead``: its replacement if it is not JSON."""
    kind = type(value).__name__
    try:
        if isinstance(value, int) and abs(value) >= LARGEST_INTEGER:
            kind = f"an int of {value.bit_length()} bits"
        elif isinstance(value, float) and not math.isfinite(value):
            kind, instead = str(float(value)), None
        elif level <= DEEPEST:
            return _convert(value, name, left_out, level, instead)
    except Exception:
        pass  # a foreign object may raise whatever it likes
    left_out.append(f"{name or 'the result'} ({kind}) is {'left out' if instead is _LEFT_OUT else None}")
    return instead


def _convert(value: Any, name: str, left_out: list[str], level: int, instead: object) -> Any:
    match value:
        case None | bool():
            return value
        case str():
            return str.__str__(value)  # of an enum, what it is equal to
        case PurePath():
            return str(value)
        case int():
            return int(value)
        case float():
            return float(value)
        case datetime.date() | datetime.time():
            return value.isoformat()
        case list() | tuple():
            return [_plain(part, f"{name}[{i}]", left_out, level + 1, None) for i, part in enumerate(value)]
    if is_dataclass(value) and not isinstance(value, type):
        value = {item.name: getattr(value, item.name) for item in fields(value)}
    if not isinstance(value, Mapping):  # an array, tensor or scalar of numpy, torch or pandas
        if not hasattr(value, "tolist") or math.prod(value.shape) > LARGEST_ARRAY:
            raise TypeError
        return _plain(value.tolist(), name, left_out, level + 1, instead)
    plain = {}
    for key, part in value.items():
        is_name = isinstance(key, str | int | float)
        word = str(_convert(key, name, left_out, level, None) if is_name else key)
        inner = f"{name}.{word}" if name else word
        if not is_name or word in plain:
            why = "another value has its name" if is_name else f"its name is of {type(key).__name__}"
            left_out.append(f"{inner} ({why}) is left out")
            continue
        converted = _plain(part, inner, left_out, level + 1)
        if converted is not _LEFT_OUT:
            plain[word] = converted
    return plain


def to_python(value: Any) -> Any:
    """Returns numbers and lists for arrays, tensors and tuples, also in lists and dicts; other values do not change."""
    if hasattr(value, "tolist"):  # of numpy or torch
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(name): to_python(part) for name, part in value.items()}
    return [to_python(part) for part in value] if isinstance(value, list | tuple) else value


def report_arguments(step: Any, metrics: Mapping[str, Any]) -> tuple[int, dict[str, float | int]]:
    """Returns the arguments of ``session.report`` as plain numbers; nan and inf stay, because they show divergence.

    Raises:
        InvalidInput: (cause "code") arguments are no numbers; the message names all of them.
    """
    numbers, whole = {name: _number(value) for name, value in metrics.items()}, _number(step)
    faults = [
        f"session.report was given {name}={_shown(metrics[name])}: a number is expected, or a tensor or array that "
        "holds one; print a text, and publish larger values as a file with session.publish"
        for name, number in numbers.items()
        if number is None
    ]
    if whole is None or whole % 1:
        step_fault = f"session.report was given step={_shown(step)}: the number of the step is expected"
        faults.insert(0, f"{step_fault}, such as step.number")
    if whole is None or faults:
        raise InvalidInput(faults, cause="code")
    return int(whole), {name: number for name, number in numbers.items() if number is not None}


def _number(value: Any) -> float | int | None:
    if hasattr(value, "item") and math.prod(value.shape) == 1:  # of numpy or torch
        value = value.item()
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else None


def _shown(value: Any) -> str:
    kind, shape = type(value).__name__, getattr(value, "shape", None)
    return f"a {kind} of shape {tuple(shape)}" if isinstance(shape, tuple) else f"{value!r:.60} ({kind})"
