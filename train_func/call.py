"""Call: the arguments of a function: nothing, the dict of its parameters, or each of them by its name."""

import inspect
from collections.abc import Callable, Mapping
from inspect import Parameter, Signature
from typing import Any

from train_func.fields import meant

Call = tuple[tuple[Any, ...], dict[str, Any]]

WHOLE = "parameters"  # the argument that gets the dict
VARIABLE = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def call_of(function: Callable[..., object], parameters: Mapping[str, Any], *, is_whole: bool) -> Call:
    """Returns the arguments for a call of ``function``.

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
    first = next(iter(signature.parameters.values()), None)
    takes_whole = first and (first.name == WHOLE or first.kind is Parameter.VAR_POSITIONAL)
    if not is_whole and (fault or not takes_whole):
        fault = _unfit(signature, parameters)
    if fault:
        raise TypeError(fault)
    return (dict(parameters),), {}


def _unfit(signature: Signature, parameters: Mapping[str, Any]) -> str:
    """Returns the names that do not fit: arguments without a value first, then values without an argument."""
    if not signature.parameters:
        names = ", ".join(map(repr, parameters))
        return f"it has no arguments, and parameters has {names}: add an argument for each, or leave them out"
    arguments = {name: each for name, each in signature.parameters.items() if each.kind not in VARIABLE}
    required = [name for name, each in arguments.items() if each.default is Parameter.empty]
    missing = [repr(name) for name in required if name not in parameters]
    faults = [f"no value for {', '.join(missing)} in parameters"] if missing else []
    faults += [
        f"no argument is called {name!r}: {meant(name, [*arguments], 'arguments').rstrip('.')}"
        for name in parameters
        if name not in arguments
    ]
    return "; ".join(faults) or str(_fault(signature, **parameters))


def _fault(signature: Signature, /, *values: object, **named: object) -> str | None:
    try:
        signature.bind(*values, **named)
    except TypeError as error:
        return str(error)
    return None
