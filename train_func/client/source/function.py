"""The function that was handed over: what kind it must be, and where its own text stands."""

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from train_func.call import call_of
from train_func.client.source.cells import Space, Statement, layers
from train_func.errors import SourceRefused

ALLOWED = (
    "what travels is a function made by `def name(parameters):` in a notebook cell or a .py file, "
    "taking the dict in an argument called `parameters`, each of its values by name, or nothing"
)


@dataclass(frozen=True)
class Root:
    """The function's own statement, and the namespace it uses."""

    space: Space
    statement: Statement
    name: str
    value: object


def find(function: object, parameters: Mapping[str, Any] | None = None) -> Root:
    """Where ``function`` was defined.

    ``parameters``: what it is called with; None: a Run with its task.

    Raises:
        SourceRefused: when it is of a kind that cannot travel, or its text cannot be had.
    """
    if fault := _fault_of_kind(function):
        raise SourceRefused(_place(function) + fault)
    root = _by_name(function) or _by_code(function)
    assert callable(function)
    try:
        call_of(function, parameters or {}, is_whole=parameters is None)
    except ValueError:  # it tells no signature
        return root
    except TypeError as error:
        takes = f"{root.name!r} takes {_signature(function)}"
        said = (
            f"{takes}, but is called with the dict of parameters ({error})"
            if parameters is None
            else f"{error}; {takes}"
        )
        raise SourceRefused(f"{root.statement.place()}: {said}; {ALLOWED}") from None
    return root


def _fault_of_kind(function: object) -> str:
    shown = getattr(function, "__qualname__", None) or type(function).__name__
    inner = function.__func__ if isinstance(function, MethodType) else function
    is_in_class = isinstance(inner, FunctionType) and "." in inner.__qualname__.rpartition("<locals>.")[2]
    if isinstance(function, functools.partial):
        shown = getattr(function.func, "__qualname__", function.func)
        return f"a functools.partial of {shown!r} was given; {ALLOWED}. Pass values by Run(parameters={{...}})"
    if isinstance(function, type):
        return f"the class {shown!r} was given; {ALLOWED}. Write a function that makes and uses the object"
    if isinstance(function, MethodType) or is_in_class:
        return f"the method {shown!r} was given; {ALLOWED}. Write a function that makes the object and calls it"
    if isinstance(function, BuiltinFunctionType) or not callable(function):
        return f"{shown!r} was given, which has no Python text; {ALLOWED}. Write such a function around it"
    if getattr(function, "__name__", "") == "<lambda>":
        return f"a lambda was given; {ALLOWED}. Write its expression as the body of such a function"
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return f"`async def {shown}` was given; {ALLOWED}. Nothing awaits it there: write `def`"
    if inspect.isgeneratorfunction(function):
        return f"the generator function {shown!r} was given (it has `yield`); {ALLOWED}. Its body would never run"
    return ""


def _place(function: object) -> str:
    """Where a function that is refused stands, as far as that can be told."""
    inner = getattr(function, "func", None) or getattr(function, "__func__", function)
    if isinstance(function, type):
        inner = next((v for v in vars(function).values() if isinstance(v, FunctionType)), None)
    space = Space.of(inner.__globals__, inner.__code__.co_filename) if isinstance(inner, FunctionType) else None
    text = space.text_of(inner.__code__) if space and isinstance(inner, FunctionType) else None
    return f"{text.place(inner.__code__.co_firstlineno)}: " if text and isinstance(inner, FunctionType) else ""


def _signature(function: Callable[..., object]) -> str:
    """Without the values of defaults, which may be credentials."""
    signature = inspect.signature(function)
    shown = [one if one.default is one.empty else one.replace(default=...) for one in signature.parameters.values()]
    return str(signature.replace(parameters=shown)).replace("Ellipsis", "...")


def _by_name(function: object) -> Root | None:
    """What a decorator made: ``@decorate`` above it, or ``fit = decorate(fit)`` below it."""
    if isinstance(function, FunctionType) and not function.__closure__ and [*layers(function)] == [function]:
        return None
    for live in _namespaces(function):
        space = Space.of(live, live.get("__file__"))
        for name in [name for name, value in list(live.items()) if value is function and not name.startswith("_")]:
            statement = space.binder(name) if space else None
            if space and statement and getattr(statement.node, "decorator_list", None):
                return Root(space, statement, name, function)
    return None


def _namespaces(function: object) -> Iterator[Mapping[str, Any]]:
    for name in dict.fromkeys([getattr(function, "__module__", None), "__main__"]):
        if isinstance(name, str) and name in sys.modules:
            yield vars(sys.modules[name])
    if isinstance(function, FunctionType):
        yield function.__globals__


def _by_code(function: object) -> Root:
    inner = next(reversed([*layers(function)]), None)
    if inner is None:
        raise SourceRefused(f"an object of {type(function).__name__} was given; {ALLOWED}. Write such a function")
    code = inner.__code__
    space = Space.of(inner.__globals__, code.co_filename)
    statement = space.definition(code) if space else None
    if space is None or statement is None:
        raise SourceRefused(
            f"{code.co_filename}, line {code.co_firstlineno}: {inner.__name__!r} no longer stands there; the file was "
            "changed after it was imported. Restart the kernel or use importlib.reload, then submit again"
            if space and space.text_of(code)
            else f"{inner.__name__!r} has no text that can be found (it was made by exec, or typed into a plain Python "
            f"prompt: {code.co_filename!r}); {ALLOWED}. Define it there"
        )
    if inner.__closure__:
        captured = ", ".join(repr(name) for name in code.co_freevars)
        raise SourceRefused(
            f"{statement.place()}: the nested function {inner.__name__!r} uses {captured} of the function around it; "
            f"{ALLOWED}. Define it at the top level and pass such values by Run(parameters={{...}})"
        )
    is_decorated = bool(getattr(statement.node, "decorator_list", ()))
    if inner is not function and not isinstance(function, staticmethod) and not is_decorated:
        raise SourceRefused(
            f"{statement.place()}: {inner.__name__!r} was changed by a call below its definition; {ALLOWED}. Write "
            "that call as a decorator above the `def`"
        )
    return Root(space, statement, inner.__name__, function)
