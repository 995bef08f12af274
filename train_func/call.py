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
    of that argument tells it from one of the values. ``def f(*values)`` names nothing, and gets the dict too. Where
    there are no parameters, a function that can be called with nothing is called so.

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
    first = next(iter(signature.parameters.values()), None)
    takes_whole = first and (is_whole or first.name == WHOLE or first.kind is Parameter.VAR_POSITIONAL)
    if takes_whole and not _fault(signature, dict(parameters)):
        return (dict(parameters),), {}
    # Without defaults, one of which may be a credential.
    arguments = [each.replace(default=Parameter.empty) for each in signature.parameters.values()]
    call = f"{getattr(function, '__name__', 'the function')}{signature.replace(parameters=arguments)}"
    if is_whole:
        raise TypeError(f"{call} is called with one dict, because its run has a task: `def name(parameters):` takes it")
    raise TypeError(f"{call} {_unfit(signature, parameters)}")


def _unfit(signature: Signature, parameters: Mapping[str, Any]) -> str:
    """Returns the names that do not fit: arguments without a value first, then values without an argument."""
    names = ", ".join(map(repr, parameters))
    if not signature.parameters:
        return f"has no arguments, and Run(parameters=...) has {names}: add an argument for each, or leave them out"
    arguments = {name: each for name, each in signature.parameters.items() if each.kind not in VARIABLE}
    required = [name for name, each in arguments.items() if each.default is Parameter.empty]
    missing = [name for name in required if name not in parameters]
    unknown = [name for name in parameters if name not in arguments]
    meant_names = dict.fromkeys(meant(name, [*arguments], "arguments").rstrip(".") for name in unknown)
    suggestion = "; ".join(meant_names)
    names = ", ".join(map(repr, unknown))
    if missing and unknown:
        return f"gets no {', '.join(map(repr, missing))}: Run(parameters=...) has {names}; {suggestion}"
    if missing:
        values = ", ".join(f"{name!r}: ..." for name in missing)
        return f"gets no {', '.join(map(repr, missing))}: give Run(parameters={{{values}}})"
    if unknown:
        return f"has no argument {names}, which Run(parameters=...) has; {suggestion}"
    return f"cannot be called by names: {_fault(signature, **parameters)}"


def _fault(signature: Signature, /, *values: object, **named: object) -> str | None:
    try:
        signature.bind(*values, **named)
    except TypeError as error:
        return str(error)
    return None
