"""What statements and functions change in place, read from their text."""

import ast
from collections.abc import Iterator

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
