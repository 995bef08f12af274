"""Call: what a function is called with: nothing, the dict of its parameters, or each of them by its name."""

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from inspect import Parameter, Signature
from typing import Any

Call = tuple[tuple[Any, ...], dict[str, Any]]

WHOLE = "parameters"  # the argument that gets the dict
VARIABLE = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def call_of(function: Callable[..., object], parameters: Mapping[str, Any], *, is_whole: bool) -> Call:
    """The arguments that ``function`` is called with.

    ``def f()`` is called with nothing. ``def f(lr, epochs=3)``, whose names are those of the parameters, gets each by
    its name. ``def f(parameters)`` gets one dict, as the stock client of the Training Operator hands it over; the name
    of that argument tells it from one of the values. ``def f(*values)`` names nothing, and gets the dict too.

    Args:
        function: takes them.
        parameters: of its run.
        is_whole: they are a Run with its task, which is always one dict.

    Raises:
        TypeError: there is no such way to call it; says in words what does not fit.
    """
    signature = inspect.signature(function)
    if is_whole and not signature.parameters:
        return (), {}
    if not is_whole and _fault(signature, **parameters) is None:
        return (), dict(parameters)
    fault = _fault(signature, dict(parameters))
    if not is_whole and (fault or not _takes_whole(signature)):
        fault = _unfit(signature, parameters)
    if fault:
        raise TypeError(fault)
    return (dict(parameters),), {}


def _takes_whole(signature: Signature) -> bool:
    first = next(iter(signature.parameters.values()))
    return first.name == WHOLE or first.kind is Parameter.VAR_POSITIONAL


def _unfit(signature: Signature, parameters: Mapping[str, Any]) -> str:
    """What does not fit by name: the arguments without a value first, then the values without an argument."""
    own = {name: of for name, of in signature.parameters.items() if of.kind not in VARIABLE}
    missing = [repr(name) for name, of in own.items() if name not in parameters and of.default is Parameter.empty]
    strange = [_with_nearest(name, own) for name in parameters if name not in own]
    faults = []
    if missing:
        given = f"it has {', '.join(parameters)}" if parameters else "it is empty"
        faults.append(f"no value for {', '.join(missing)} in parameters: {given}")
    if strange:
        faults.append(f"no argument is called {', '.join(strange)}")
    return "; ".join(faults) or str(_fault(signature, **parameters))


def _with_nearest(name: str, own: Iterable[str]) -> str:
    folded = {of.lower().replace("_", ""): of for of in own}
    near = difflib.get_close_matches(name.lower().replace("_", ""), folded, 1)
    return f"{name!r} (one is called {folded[near[0]]!r})" if near else repr(name)


def _fault(signature: Signature, /, *values: object, **named: object) -> str | None:
    try:
        signature.bind(*values, **named)
    except TypeError as error:
        return str(error)
    return None
