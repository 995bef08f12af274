"""The expressions that run when a definition is executed: defaults of arguments, and what a class body assigns.

They are not computed again in a worker: the value of each takes its place in the text that travels.
"""

import abc
import ast
import copy
import dataclasses
import enum
from collections.abc import Iterator
from types import FunctionType
from typing import NamedTuple

from train_func.client.source.cells import ABSENT, ATOMS, Space, is_same_literal, layers, literal
from train_func.client.source.names import Definition, binds
from train_func.client.source.values import is_type

_CHANGERS = frozenset(
    ("append", "extend", "insert", "pop", "remove", "clear", "sort", "reverse", "update", "setdefault", "add")
)


class Computed(NamedTuple):
    """An expression of a definition, and the value that it gave."""

    node: ast.expr
    name: str
    value: object
    attribute: str = ""
    """How the module reaches it, as ``Config.rate``; empty for a default, and for a field."""


def computed_values(node: ast.AST, value: object, space: Space) -> Iterator[Computed]:
    """The expressions of the definition ``node``, which made ``value``, that do not say themselves what they gave."""
    for one in _expressions_of(node, value):
        said = literal(one.node)
        if said is not ABSENT:
            is_same = not one.attribute or is_same_literal(said, one.value)
        elif isinstance(one.node, ast.Lambda):
            is_same = not (one.node.args.defaults or any(one.node.args.kw_defaults))
        else:
            held = space.live.get(one.node.id, ABSENT) if isinstance(one.node, ast.Name) else ABSENT
            is_same = held is one.value or (type(held) in ATOMS and is_same_literal(held, one.value))
        is_annotation = is_type(one.value) and not isinstance(one.value, type)
        if not (one.value is ABSENT or is_same or is_annotation):
            yield one


def is_edited(node: ast.AST, value: object) -> bool:
    """Whether a literal in the definition is another one than that which made ``value``."""
    said = [(literal(one.node), one.value) for one in _expressions_of(node, value)]
    return any(not is_same_literal(text, one) for text, one in said if text is not ABSENT and type(one) in ATOMS)


def _expressions_of(node: ast.AST, value: object) -> Iterator[Computed]:
    if isinstance(node, ast.ClassDef):
        yield from _of_class(node, value, node.name)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        codes = ((one, one.__code__) for one in layers(value))
        function = next((one for one, c in codes if (c.co_name, c.co_firstlineno) == (node.name, first)), None)
        yield from _defaults(node.args, function)
    elif isinstance(node, ast.Lambda) and isinstance(value, FunctionType):
        yield from _defaults(node.args, value)


def _defaults(arguments: ast.arguments, function: FunctionType | None) -> Iterator[Computed]:
    if function is None:
        return
    values = function.__defaults__ or ()
    names = [one.arg for one in (*arguments.posonlyargs, *arguments.args)]
    if len(values) == len(arguments.defaults):
        for name, node, value in zip(names[len(names) - len(values) :], arguments.defaults, values, strict=True):
            yield Computed(node, name, value)
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if default is not None:
            yield Computed(default, argument.arg, (function.__kwdefaults__ or {}).get(argument.arg, ABSENT))


def _of_class(node: ast.ClassDef, kind: object, path: str) -> Iterator[Computed]:
    if not isinstance(kind, type) or issubclass(kind, enum.Enum | tuple):  # whose attributes are members and fields
        return
    for inner in node.body:
        if isinstance(inner, ast.ClassDef):
            yield from _of_class(inner, _attribute(kind, inner.name), f"{path}.{inner.name}")
        elif isinstance(inner, Definition):
            yield from _expressions_of(inner, _attribute(kind, inner.name))
        elif isinstance(inner, ast.Assign | ast.AnnAssign) and inner.value is not None:
            target = inner.targets[0] if isinstance(inner, ast.Assign) else inner.target
            names = [one.id for one in getattr(target, "elts", [target]) if isinstance(one, ast.Name)]
            values = tuple(_attribute(kind, name) for name in names)
            if isinstance(target, ast.Tuple) and ABSENT not in values:
                yield Computed(inner.value, ", ".join(names), values)
            elif isinstance(target, ast.Name) and not _is_code(inner.value, values[0]):
                attribute = "" if dataclasses.is_dataclass(kind) else f"{path}.{target.id}"
                yield Computed(inner.value, target.id, values[0], attribute)


def _is_code(node: ast.expr, value: object) -> bool:
    """Whether what the expression gave belongs to its class, as a property does, or ``dataclasses.field(...)``."""
    is_field = isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "field"
    return is_field or (hasattr(type(value), "__get__") and not isinstance(node, ast.Lambda))


def _attribute(kind: type, name: str) -> object:
    if field := vars(kind).get("__dataclass_fields__", {}).get(name):
        return ABSENT if field.default is dataclasses.MISSING else field.default
    return vars(kind).get(name, ABSENT)


def added_attributes(node: ast.stmt, value: object) -> list[str]:
    """The attributes of a function or a class that its definition does not bind, as ``setattr`` makes them.

    Not those of a class that other code completes while it is made: that code runs where the class is made again.
    """
    if isinstance(node, ast.FunctionDef) and isinstance(value, FunctionType) and not node.decorator_list:
        return [name for name in vars(value) if not name.startswith("__")]
    if not isinstance(node, ast.ClassDef) or type(value) not in (type, abc.ABCMeta):
        return []
    assert isinstance(value, type)
    completes = any("__init_subclass__" in vars(base) and base.__module__ != "typing" for base in value.__mro__[1:-1])
    decorators = [ast.unparse(getattr(one, "func", one)).rpartition(".")[2] for one in node.decorator_list]
    if completes or issubclass(value, tuple) or {*decorators} - {"dataclass"}:
        return []
    slots = vars(value).get("__slots__", ())
    bound = {name for inner in node.body for name in binds(inner)} | ({slots} if isinstance(slots, str) else {*slots})
    bound |= {*vars(value).get("__dataclass_fields__", ())}
    private = ("__", "_abc_", f"_{value.__name__.lstrip('_')}__")
    return [name for name in vars(value) if name not in bound and not name.startswith(private)]


def changed_names(node: ast.AST) -> set[str]:
    """The names and attributes that code below ``node`` changes in place, as a registry, or binds as globals."""
    names: set[str] = set()
    for one in ast.walk(node):
        if isinstance(one, ast.Global):
            names |= {*one.names}
        if not isinstance(one, ast.Subscript | ast.Attribute):
            continue
        if getattr(one, "attr", "") in _CHANGERS or not isinstance(one.ctx, ast.Load):
            inner: ast.expr = one
            while isinstance(inner, ast.Attribute | ast.Subscript):
                inner = inner.value
                names.add(getattr(inner, "attr", getattr(inner, "id", "")))
    return names


def empty_of(value: object) -> object:
    """What a registry was before anything was registered: empty, or an object whose containers are."""
    if hasattr(value, "clear"):
        empty = copy.copy(value)
        empty.clear()
        return empty
    made = object.__new__(type(value))
    made.__dict__.update({k: empty_of(v) if hasattr(v, "clear") else v for k, v in vars(value).items()})
    return made
