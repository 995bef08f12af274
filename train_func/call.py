"""Call: what a function is called with: nothing, the dict of its parameters, or each of them by its name."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

Call = tuple[tuple[Any, ...], dict[str, Any]]


def call_of(function: Callable[..., object], parameters: Mapping[str, Any], *, is_whole: bool) -> Call:
    """The arguments that ``function`` is called with.

    ``def f()`` is called with nothing. ``def f(lr, epochs=3)``, whose names are those of the parameters, gets each by
    its name. A function that takes none of these names gets one dict, as the stock client of the Training Operator
    hands it over.

    Args:
        function: takes them.
        parameters: of its run.
        is_whole: they are a Run with its task, which is always one dict.

    Raises:
        TypeError: there is no such way to call it; says in words what does not fit.
    """
    signature = inspect.signature(function)
    if not signature.parameters:
        if parameters and not is_whole:
            raise TypeError(f"it takes nothing, and parameters has {', '.join(parameters)}")
        return (), {}
    named = _fault(signature, **parameters)
    if not is_whole and named is None:
        return (), dict(parameters)
    whole = _fault(signature, dict(parameters))
    if not is_whole and parameters and (whole or not signature.parameters.keys().isdisjoint(parameters)):
        raise TypeError(named)
    if whole:
        raise TypeError(whole)
    return (dict(parameters),), {}


def _fault(signature: inspect.Signature, *values: object, **named: object) -> str | None:
    try:
        signature.bind(*values, **named)
    except TypeError as error:
        return str(error)
    return None
