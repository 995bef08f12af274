"""The function that was handed over: what kind it must be, and where its own text stands."""

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from train_func.call import call_of
from train_func.client.source.cells import Definition, Space, Statement, layers
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
        SourceRefused: when it is of a kind that cannot travel, or its text cannot be had; with every reason.
    """
    faults = list(_faults_of_kind(function))
    root = None if faults else _wrapped(function) or _plain(function)
    faults += _faults_of_signature(function, root, parameters)
    if faults:
        raise SourceRefused(faults)
    assert root is not None
    return root


def _faults_of_kind(function: object) -> Iterator[str]:
    shown = getattr(function, "__qualname__", None) or type(function).__name__
    place = _place(function)
    if isinstance(function, functools.partial):
        inner = getattr(function.func, "__qualname__", function.func)
        yield f"{place}a functools.partial of {inner!r} was given; {ALLOWED}. Pass values by Run(parameters={{...}})"
    elif isinstance(function, type):
        yield f"{place}the class {shown!r} was given; {ALLOWED}. Write a function that makes and uses the object"
    elif isinstance(function, MethodType) or (isinstance(function, FunctionType) and _is_in_class(function)):
        yield f"{place}the method {shown!r} was given; {ALLOWED}. Write a function that makes the object and calls it"
    elif isinstance(function, BuiltinFunctionType) or not callable(function):
        yield f"{shown!r} was given, which has no Python text; {ALLOWED}. Write such a function around it"
    elif getattr(function, "__name__", "") == "<lambda>":
        yield f"{place}a lambda was given; {ALLOWED}. Write its expression as the body of such a function"
    elif inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        yield f"{place}`async def {shown}` was given; {ALLOWED}. Nothing awaits it there: write `def`"
    elif inspect.isgeneratorfunction(function):
        yield f"{place}the generator function {shown!r} was given (it has `yield`); {ALLOWED}. Its body would never run"


def _faults_of_signature(function: object, root: Root | None, parameters: Mapping[str, Any] | None) -> Iterator[str]:
    if root is None or not callable(function):
        return
    try:
        call_of(function, parameters or {}, is_whole=parameters is None)
    except ValueError:  # it tells no signature
        return
    except TypeError as error:
        takes = f"{root.name!r} takes {_signature(function)}"
        task = f"{takes}, but is called with the dict of parameters ({error})"
        yield f"{root.statement.place()}: {task if parameters is None else f'{error}; {takes}'}; {ALLOWED}"


class _Default:
    """What a message shows of a default, which may be a credential."""

    def __repr__(self) -> str:
        return "..."


def _signature(function: Callable[..., object]) -> inspect.Signature:
    signature = inspect.signature(function)
    parameters = [
        one if one.default is one.empty else one.replace(default=_Default()) for one in signature.parameters.values()
    ]
    return signature.replace(parameters=parameters)


def _plain(function: object) -> Root:
    inner = next(reversed([*layers(function)]), None)
    if inner is None:
        raise SourceRefused(f"an object of {type(function).__name__} was given; {ALLOWED}. Write such a function")
    space = Space.of(inner.__globals__, inner.__code__.co_filename)
    statement = space.definition(inner.__code__) if space else None
    if space is None or statement is None:
        raise SourceRefused(_no_text(inner, space))
    if inner.__closure__:
        captured = ", ".join(repr(name) for name in inner.__code__.co_freevars)
        raise SourceRefused(
            f"{statement.place()}: the nested function {inner.__name__!r} uses {captured} of the function around it; "
            f"{ALLOWED}. Define it at the top level and pass such values by Run(parameters={{...}})"
        )
    if inner is not function and not isinstance(function, staticmethod) and not _is_decorated(statement):
        raise SourceRefused(
            f"{statement.place()}: {inner.__name__!r} was changed by a call below its definition; {ALLOWED}. Write "
            "that call as a decorator above the `def`"
        )
    return Root(space, statement, inner.__name__, function)


def _is_decorated(statement: Statement) -> bool:
    return isinstance(statement.node, Definition) and bool(statement.node.decorator_list)


def _wrapped(function: object) -> Root | None:
    """By its name, for what a decorator made: ``@decorate`` above it, or ``fit = decorate(fit)`` below it."""
    if isinstance(function, FunctionType) and not function.__closure__ and [*layers(function)] == [function]:
        return None
    for live in _namespaces(function):
        for name in [name for name, value in list(live.items()) if value is function and not name.startswith("_")]:
            space = Space.of(live, live.get("__file__"))
            statement = space.binder(name) if space else None
            if space and statement and _is_decorated(statement):
                return Root(space, statement, name, function)
    return None


def _namespaces(function: object) -> Iterator[Mapping[str, Any]]:
    for name in dict.fromkeys([getattr(function, "__module__", None), "__main__"]):
        module = sys.modules.get(name) if isinstance(name, str) else None
        if module is not None:
            yield vars(module)
    if isinstance(function, FunctionType):
        yield function.__globals__


def _no_text(function: FunctionType, space: Space | None) -> str:
    code = function.__code__
    if space is not None and space.text_of(code):
        return (
            f"{code.co_filename}, line {code.co_firstlineno}: {function.__name__!r} no longer stands there; the file "
            "was changed after it was imported. Restart the kernel or use importlib.reload, then submit again"
        )
    return (
        f"{function.__name__!r} has no text that can be found (it was made by exec, or typed into a plain Python "
        f"prompt: {code.co_filename!r}); {ALLOWED}. Define it there"
    )


def _is_in_class(function: FunctionType) -> bool:
    return "." in function.__qualname__.rpartition("<locals>.")[2]


def _place(function: object) -> str:
    """Where a function that is refused stands, as far as that can be told."""
    inner = getattr(function, "func", None) or getattr(function, "__func__", function)
    if isinstance(function, type):
        inner = next((v for v in vars(function).values() if isinstance(v, FunctionType)), None)
    if not isinstance(inner, FunctionType):
        return ""
    space = Space.of(inner.__globals__, inner.__code__.co_filename)
    text = space.text_of(inner.__code__) if space else None
    return f"{text.place(inner.__code__.co_firstlineno)}: " if text else ""
