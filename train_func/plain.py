"""Plain values for values of a user: a Path becomes text, a number of numpy one of Python.

Types are recognised by name, so that nothing is imported that the user has not imported.
"""

from collections.abc import Mapping
from pathlib import PurePath


def plain(value: object) -> object:
    """Returns ``value`` with every Path and numpy scalar in it as a plain value; other values do not change."""
    if isinstance(value, PurePath):
        return str(value)
    if is_a(value, "numpy", "generic"):
        return value.item()  # type: ignore[attr-defined]
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [plain(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value


def is_a(value: object, package: str, name: str) -> bool:
    """Returns whether the class of ``value``, or one of its bases, has this name and comes from this package."""
    return any(kind.__name__ == name and kind.__module__.split(".")[0] == package for kind in type(value).__mro__)
