"""Names that people give: a misspelt or missing field or argument is refused with the one that was meant."""

import ast
import difflib
import inspect
import itertools
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import partial, wraps
from typing import Any, ParamSpec, Self, TypeVar

from train_func.errors import InvalidInput

P = ParamSpec("P")
R = TypeVar("R")


class _Signature:
    """The signature of the generated ``__init__``: editors and help() would otherwise show that of ``__new__``."""

    def __get__(self, instance: object, owner: Any) -> inspect.Signature:
        return inspect.signature(partial(owner.__init__, None))


class _Documented(type):
    """Its classes' ``help()`` has a line for each field: the text below it, which Python itself does not keep."""

    @property
    def __doc__(cls) -> str:  # type: ignore[override]  # read when it is asked for: import does not wait for it
        own = inspect.cleandoc(cls.__dict__.get("__doc__") or cls.__name__)
        told = {name: text for kind in reversed(cls.__mro__) for name, text in _texts(kind).items()}
        lines = [f"    {name}: {told[name]}" for name in getattr(cls, "__dataclass_fields__", ()) if name in told]
        return "\n".join([own, "", "Fields:", *lines] if lines else [own])


def _texts(kind: type) -> dict[str, str]:
    """What stands below the fields of a class, each as one line; nothing where its source is not at hand."""
    if not isinstance(kind, _Documented):
        return {}
    try:
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return {}
    return {
        own.target.id: " ".join(text.value.value.split())
        for own, text in itertools.pairwise(getattr(body, "body", []))
        if isinstance(own, ast.AnnAssign) and isinstance(own.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }


class NamedFields(metaclass=_Documented):
    """Base of frozen dataclasses with keyword-only fields."""

    __signature__ = _Signature()

    def __new__(cls, *unnamed: Any, **given: Any) -> Self:
        """Raises InvalidInput naming each field that is misspelt, given without a name, or missing."""
        required = [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]  # type: ignore[arg-type]
        example = f"{cls.__name__}({', '.join(f'{name}=...' for name in required or field_names(cls)[:1])})"
        found = [cls.unknown(name, given) for name in given if name not in field_names(cls)]
        if unnamed:
            found.append(f"the fields of a {cls.__name__} are given by name: {example}")
        elif given:  # copy and pickle make an object of nothing, and fill it afterwards
            found += [f"{name}= is missing: {example} is expected" for name in required if name not in given]
        if found:
            raise InvalidInput(found)
        return super().__new__(cls)

    @classmethod
    def unknown(cls, name: str, given: Mapping[str, Any]) -> str:
        """What is said of a field that there is not; ``given`` are all fields of the call."""
        return f"{cls.__name__} has no field {name!r}: {_meant(name, field_names(cls), 'fields')}"


def refuse_unknown(function: Callable[P, R]) -> Callable[P, R]:
    """Decorates a function: an argument that it does not have is refused with the one that was meant."""
    names = [*inspect.signature(function).parameters]

    @wraps(function)
    def checked(*unnamed: P.args, **given: P.kwargs) -> R:
        faults = [
            f"{function.__name__} has no argument {name!r}: {_meant(name, names, 'arguments')}"
            for name in given
            if name not in names
        ]
        if faults:
            raise InvalidInput(faults)
        return function(*unnamed, **given)

    return checked


def _meant(name: str, names: Sequence[str], what: str) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"its {what} are {', '.join(names)}."


def field_names(kind: Any) -> tuple[str, ...]:
    """Names of the fields of a dataclass, in their order."""
    return tuple(own.name for own in fields(kind))
