"""Fields that users give: refuses a misspelt name, with a suggestion, and judges values.

A judge of a value returns its fault, the given value and the allowed ones, or None. A field names its judge in its
metadata; ``field_faults`` asks them all.
"""

import ast
import functools
import inspect
import itertools
import json
import math
import re
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from functools import partial
from html import escape
from typing import Any, ParamSpec, Self, TypeGuard, TypeVar

from train_func.errors import InvalidInput
from train_func.secret import secret_in, secret_under
from train_func.text import cut, nearest, shown

P = ParamSpec("P")
R = TypeVar("R")
Judge = Callable[[str, Any], str | None]

MAX_SHOWN = 100  # characters of a value that is no text
_CUT_ADDRESS = re.compile(r"(s3|package|hf|pvc|https?):/(?!/)")


class _Documented(type):
    """Its classes' ``help()`` has a line for each field: the text below it, which Python itself does not keep."""

    def __dir__(cls) -> list[str]:
        """Returns what help() lists, without what Python and dataclass() add."""
        return [name for name in super().__dir__() if not name.startswith("__")]

    @property
    def __signature__(cls) -> inspect.Signature:
        """Editors and help() would otherwise show that of ``__new__``."""
        return inspect.signature(partial(cls.__init__, None))  # type: ignore[misc]

    @property
    def __doc__(cls) -> str:  # type: ignore[override]
        text = inspect.cleandoc(cls.__dict__.get("__doc__") or cls.__name__)
        if "__match_args__" not in cls.__dict__:  # dataclass() asks whether there is one, and reading a source is slow
            return text
        texts = field_texts(cls)
        lines = [f"    {name}: {texts[name]}" for name in field_names(cls) if name in texts]
        return "\n".join([text, "", "Fields:", *lines] if lines else [text])


def field_texts(kind: type) -> dict[str, str]:
    """Returns the text below each field of a class and its bases, as a line; empty if there is no source."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not isinstance(base, _Documented):
            continue
        try:
            (body,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        except (OSError, TypeError, SyntaxError, ValueError):
            continue
        texts |= {
            field.target.id: " ".join(text.value.value.split())
            for field, text in itertools.pairwise(getattr(body, "body", []))
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
        }
    return texts


def _changed(instance: "NamedFields") -> dict[str, Any]:
    """Returns the fields that differ from their defaults."""
    values = {field: getattr(instance, field.name) for field in fields(instance) if field.repr}  # type: ignore[arg-type]
    return {field.name: value for field, value in values.items() if value != _default(field)}


def _default(field: "Field[Any]") -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


class NamedFields(metaclass=_Documented):
    """Base of frozen dataclasses with keyword-only fields."""

    def __new__(cls, *unnamed: Any, **values: Any) -> Self:
        """Raises InvalidInput naming each field that is misspelt, given without a name, or missing."""
        required = [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]  # type: ignore[arg-type]
        example = f"{cls.__name__}({', '.join(f'{name}=...' for name in required or field_names(cls)[:1])})"
        faults = [cls._unknown(name, values) for name in values if name not in field_names(cls)]
        if unnamed:
            faults.append(f"the fields of a {cls.__name__} are given by name: {example}")
        elif values:  # copy and pickle make an object of nothing, and fill it afterwards
            faults += [f"{name}= is missing: {example} is expected" for name in required if name not in values]
        if faults:
            raise InvalidInput(faults)
        return super().__new__(cls)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.__repr__ = NamedFields.__repr__  # type: ignore[method-assign]  # dataclass() makes none where there is one

    def __repr__(self) -> str:
        """Returns the call that makes it, without the fields that have their defaults."""
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in _changed(self).items())})"

    def _repr_html_(self) -> str | None:
        """Returns the same fields as a table, with a row for each field of a task; None if all have their defaults."""
        rows: dict[str, str] = {}
        for name, value in _changed(self).items():
            is_nested = isinstance(value, NamedFields)
            rows[name] = type(value).__name__ if is_nested else repr(value)
            rows |= {f"{name}.{key}": repr(part) for key, part in (_changed(value) if is_nested else {}).items()}
        line = '<tr><th style="text-align:left">{}</th><td style="text-align:left">{}</td></tr>'.format
        lines = "".join(line(name, escape(shown(text), quote=False)) for name, text in rows.items())
        return f"<b>{type(self).__name__}</b><table>{lines}</table>" if rows else None

    @classmethod
    def _unknown(cls, name: str, values: Mapping[str, Any]) -> str:
        """Returns the fault of an unknown field; ``values`` are all fields of the call."""
        return f"{cls.__name__} has no field {name!r}: {meant(name, field_names(cls), 'fields')}"


def named_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Returns the function with a check that refuses a misspelt argument, with a suggestion."""
    names = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> R:
        if faults := [
            f"{function.__name__} has no argument {name!r}: {meant(name, names, 'arguments')}"
            for name in options
            if name not in names
        ]:
            raise InvalidInput(faults)
        return function(*arguments, **options)

    return call


def field_faults(instance: Any) -> list[str]:
    """Returns the faults that the judges of a dataclass's fields find; a None that is the default needs no judge."""
    faults = []
    for each in fields(instance):
        value = getattr(instance, each.name)
        if "judge" in each.metadata and not (value is None and each.default is None):
            faults.append(each.metadata["judge"](each.name, value))
    return [fault for fault in faults if fault]


def whole(low: int, high: int | None = None) -> Judge:
    """Returns a judge of whole numbers from ``low`` to ``high``, if there is one."""
    return partial(whole_fault, low=low, high=high)


def meant(name: str, names: Sequence[str], what: str) -> str:
    """Returns a suggestion for an unknown name: the nearest of ``names``, or all of them."""
    if not names:
        return f"it has no {what}."
    close = nearest(name, names)
    return f"did you mean {close!r}?" if close else f"its {what} are {', '.join(names)}."


def field_names(kind: Any) -> tuple[str, ...]:
    """Returns the names of the fields of a dataclass, in their order."""
    return tuple(field.name for field in fields(kind))


def whole_fault(name: str, value: object, low: int, high: int | None = None) -> str | None:
    """A whole number from ``low`` to ``high``, if there is one, is expected."""
    if isinstance(value, int) and not isinstance(value, bool) and low <= value and (high is None or value <= high):
        return None
    limits = f"of at least {low}" if high is None else f"from {low} to {high}"
    return f"{name}={brief(value)}: a whole number {limits} is expected"


def flag_fault(name: str, value: object) -> str | None:
    """True or False is expected."""
    return None if isinstance(value, bool) else f"{name}={brief(value)}: True or False is expected"


def text_fault(name: str, value: object, expected: str = "a non-empty text is expected") -> str | None:
    """A text that is not empty, holds no secret, and is no address that lost a slash in a Path."""
    if not (isinstance(value, str) and value.strip()):
        return f"{name}={brief(value)}: {expected}"
    if secret := secret_in(value):
        return f"{name}: holds {secret}; give credentials by Secret or environment, never in a Run"
    if address := _CUT_ADDRESS.match(value):
        return f"{name}={value!r}: an address begins with {address[1]}://; a Path removes one slash: give it as text"
    return None


def is_number(value: object) -> TypeGuard[float]:
    """Returns whether it is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def parameter_faults(parameters: object, reserved: Collection[str]) -> list[str]:
    """Every value of ``parameters`` that is no plain JSON, holds a secret, or has a reserved name."""
    if not isinstance(parameters, Mapping):
        return [f"parameters={brief(parameters)}: a dict of plain JSON values is expected"]
    faults: list[str | None] = []
    for key, value in parameters.items():
        where = f"parameters[{key!r}]"
        if not isinstance(key, str):
            faults.append(f"{where}: every key must be a text")
        elif key in reserved:
            faults.append(f"{where}: the function receives a field of Run under that name; choose another")
        else:
            faults.append(json_fault(where, key, value))
    return [fault for fault in faults if fault]


def json_fault(where: str, name: str, value: object) -> str | None:
    """Plain JSON without a secret; ``name`` tells what the value is, as ``api_key`` does."""
    if secret := _secret_within(name, value):
        return f"{where}: holds {secret}; pass credentials by Secret or environment"
    try:
        same = json.loads(json.dumps(value, allow_nan=False)) == value
    except (TypeError, ValueError):
        same = False
    if same:
        return None
    return (
        f"{where} = {brief(value)} ({type(value).__name__}): only plain JSON travels: "
        "text, finite numbers, true, false, None, lists and dicts with text keys"
    )


def _secret_within(key: str, value: object) -> str | None:
    if isinstance(value, str):
        return secret_under(key, value)
    if isinstance(value, Mapping):
        return next((secret for k, v in value.items() if (secret := _secret_within(str(k), v))), None)
    if isinstance(value, (list, tuple)):
        return next((secret for item in value if (secret := _secret_within(key, item))), None)
    return None


def brief(value: object) -> str:
    """One short line: tables, arrays and long lists would fill the screen."""
    text = " ".join(repr(value).split())
    return cut(text, MAX_SHOWN)
