"""What statements and functions change in place, read from their text, and what it was before."""

import ast
import collections
import copy
import types
from collections.abc import Iterator
from typing import Any

from train_func.client.source.values import is_own_object

_LABELS = frozenset(("__doc__", "__module__", "__name__", "__qualname__"))
CHANGERS = frozenset(
    ("append", "extend", "insert", "pop", "remove", "clear", "sort", "reverse", "update", "setdefault", "add")
)


def attributes_set(node: ast.stmt, name: str) -> Iterator[str]:
    """The attributes of what ``name`` holds that the statement sets or deletes, as ``name.x = 1``."""
    targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else [getattr(node, "target", None)]
    for target in targets:
        match target:
            case ast.Attribute(value=ast.Name(id=owner), attr=attribute) if owner == name and attribute not in _LABELS:
                yield attribute


def set_within(node: ast.AST) -> set[str]:
    """The attributes that functions below ``node`` set on anything."""
    return {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store)}


def changed_within(node: ast.AST) -> set[str]:
    """Names that functions below ``node`` may bind or change when they are called, as a counter or a registry."""
    names: set[str] = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.Global):
            names |= set(inner.names)
        elif isinstance(inner, ast.Subscript | ast.Attribute):
            is_changer = isinstance(inner, ast.Attribute) and inner.attr in CHANGERS
            if (is_changer or not isinstance(inner.ctx, ast.Load)) and (root := root_of(inner)):
                names.add(root)
    return names


def root_of(node: ast.expr) -> str | None:
    """The name that an attribute or an item is looked up on, as ``a`` in ``a.b[0].c``."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def empty_of(container: Any) -> object:
    """What a registry was before anything was registered: empty, or an own object whose containers of code are."""
    if not is_own_object(container) or isinstance(container, dict | list):
        empty = copy.copy(container)
        empty.clear()
        return empty
    made = object.__new__(type(container))
    state = object.__getattribute__(container, "__dict__")
    made.__dict__.update({name: empty_of(one) if _holds_code(one) else one for name, one in state.items()})
    return made


def _holds_code(value: object) -> bool:
    """Whether it is a container with functions or classes."""
    if not isinstance(value, dict | list | set | collections.deque):
        return False
    within = [*value, *(value.values() if isinstance(value, dict) else ())]
    return any(isinstance(one, types.FunctionType | type) or _holds_code(one) for one in within)
