"""Tells plain values, which a statement can build again anywhere, from live objects, which exist only here."""

import contextlib
import dataclasses
import enum
import functools
import io
import logging
import pickle
import sys
import types
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from train_func.client.source.modules import is_installed

MAX_LOOKED_AT = 20_000  # values of one constant; a longer list is judged by its beginning
_ATOMS = (type(None), bool, int, float, complex, str, bytes, bytearray, range, slice, enum.Enum, type(...))
_CODE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, type, types.ModuleType, property)
_KINDS_OF_TYPES = frozenset({"typing", "typing_extensions", "annotationlib"})
# Values of numeric packages, by name, as neither is imported for this; a torch.nn.Parameter is part of a model.
_VALUES = frozenset(f"torch.{name}" for name in ("Tensor", "dtype", "device", "Size", "layout", "memory_format"))
_BASES_OF_VALUES = frozenset({"numpy.ndarray", "numpy.generic", "numpy.dtype"})


def why_alive(value: object) -> str | None:
    """What live object ``value`` is or holds, in words, or None when a statement can build it again."""
    seen: set[int] = set()
    waiting: deque[object] = deque([value])
    while waiting and len(seen) < MAX_LOOKED_AT:
        one = waiting.popleft()
        if id(one) in seen or isinstance(one, _ATOMS):
            continue
        seen.add(id(one))
        inner = _inside(one)
        if inner is None:
            named = f"a live object ({_full_name(type(one))})"
            return named if one is value else f"a {type(value).__name__} that holds {named}"
        waiting.extend(inner)
    return None


def _inside(value: object) -> Iterable[Any] | None:
    """The values that ``value`` is made of, or None when it is a live object."""
    kind = type(value)
    if isinstance(value, types.MethodType | types.BuiltinMethodType):
        return [] if value.__self__ is None else [value.__self__]
    if isinstance(value, _CODE) or kind is object or kind.__module__ in _KINDS_OF_TYPES:
        return []
    if isinstance(value, logging.Logger | logging.LoggerAdapter | types.GenericAlias | types.UnionType):
        return []
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, io.IOBase) or hasattr(kind, "__next__"):
        return None
    if isinstance(value, dict) or (isinstance(value, Mapping) and _origin(kind) != "installed"):
        return [*value.keys(), *value.values(), *_fields(value)]
    if isinstance(value, list | tuple | set | frozenset | deque):
        return [*value, *_fields(value)]
    if dataclasses.is_dataclass(value) or isinstance(value, types.SimpleNamespace):
        return _fields(value)
    origin = _origin(kind)
    if origin == "own":
        return _fields(value)
    if origin == "standard":
        return [] if _travels_by_pickle(value) else None
    if _is_of_a_package(value):
        return []
    is_value = _full_name(kind) in _VALUES or any(_full_name(base) in _BASES_OF_VALUES for base in kind.__mro__)
    return [] if is_value or issubclass(kind, BaseException) else None


def _origin(kind: type) -> str:
    """Whose class it is: "standard" (Python's), "installed" (a package's) or "own" (a cell's or local module's)."""
    top = kind.__module__.partition(".")[0]
    if top in sys.stdlib_module_names and top != "__main__":
        return "standard"
    module = sys.modules.get(kind.__module__)
    if top == "__main__" or module is None:
        return "own"
    file = getattr(module, "__file__", None)
    return "own" if file and not is_installed(file) else "installed"


def _fields(value: object) -> list[Any]:
    declared = [kind.__dict__.get("__slots__", ()) for kind in type(value).__mro__]
    names = [name for slots in declared for name in ([slots] if isinstance(slots, str) else slots)]
    slots = [getattr(value, name) for name in names if name != "__dict__" and hasattr(value, name)]
    return [*getattr(value, "__dict__", {}).values(), *slots]


def _travels_by_pickle(value: object) -> bool:
    # Python's own classes refuse pickle exactly when they hold something of this process or machine.
    if type(value).__module__ == "functools":  # caches and the like, around functions that travel as text
        return True
    with contextlib.suppress(Exception):
        pickle.dumps(value)
        return True
    return False


def _is_of_a_package(value: object) -> bool:
    """Whether its package offers the very object by its name, as numpy does its functions."""
    name = getattr(value, "__name__", None)
    homes = (getattr(value, "__module__", None), type(value).__module__.partition(".")[0])
    modules = [sys.modules.get(home) for home in homes if isinstance(home, str)]
    return isinstance(name, str) and any(getattr(module, name, None) is value for module in modules if module)


def _full_name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
