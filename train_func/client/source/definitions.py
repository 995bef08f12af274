"""The expressions that run when a definition is executed: defaults of arguments, and what a class body assigns.

A worker does not compute them again: the value of each replaces it in the text that travels.
"""

import ast
import dataclasses
import enum
import functools
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from types import CellType, FunctionType, ModuleType
from typing import Any, NamedTuple

from train_func.client.source.cells import ABSENT, ATOMS, Space, is_same_literal, literal
from train_func.client.source.names import Definition, Import, binds
from train_func.client.source.values import is_type

_CHANGERS = frozenset(
    ("append", "extend", "insert", "pop", "remove", "clear", "sort", "reverse", "update", "setdefault", "add")
)


class Computed(NamedTuple):
    """An expression of a definition, and its value."""

    node: ast.expr
    name: str
    value: object
    attribute: str = ""
    """Its path in the module, as ``Config.rate``; empty for a default, and for a field."""


def computed_values(node: ast.AST, value: object, space: Space) -> Iterator[Computed]:
    """Yields the expressions of the definition ``node``, which made ``value``, that are no literals of their value."""
    for expression in _expressions_of(node, value):
        constant = literal(expression.node)
        if constant is not ABSENT:
            is_same = is_same_literal(constant, expression.value)
        elif isinstance(expression.node, ast.Lambda):
            is_same = not (expression.node.args.defaults or any(expression.node.args.kw_defaults))
        else:
            bound = space.live.get(expression.node.id, ABSENT) if isinstance(expression.node, ast.Name) else ABSENT
            is_same = bound is expression.value or (type(bound) in ATOMS and is_same_literal(bound, expression.value))
        is_annotation = is_type(expression.value) and not isinstance(expression.value, type)
        if not (expression.value is ABSENT or is_same or is_annotation):
            yield expression


def is_edited(node: ast.AST, value: object) -> bool:
    """Returns whether a literal in the definition differs from the one that made ``value``."""
    constants = [(literal(expression.node), expression.value) for expression in _expressions_of(node, value)]
    return any(
        not is_same_literal(text, current)
        for text, current in constants
        if text is not ABSENT and type(current) in ATOMS
    )


def shown_values(node: ast.AST, value: object) -> list[str]:
    """Returns the defaults and attributes of a definition as texts, without their addresses in memory."""
    values = [expression.value for expression in _expressions_of(node, value)]
    return [re.sub(r"\b0x[0-9a-f]+", "", f"{type(part)} {part!r}") for part in values]


def _made_arguments(node: ast.expr | None, kind: object) -> Iterator[Computed]:
    """Yields the arguments of a call that made an enum or a named tuple, from the class that it made."""
    values: dict[str, object] = {}
    if isinstance(kind, enum.EnumMeta):
        values = {"names": {name: vars(member)["_value_"] for name, member in vars(kind)["_member_map_"].items()}}
    elif isinstance(kind, type) and "_field_defaults" in vars(kind):
        values = {"field_names": [*vars(kind)["_fields"]], "defaults": [*vars(kind)["_field_defaults"].values()]}
    if isinstance(node, ast.Call):
        arguments = [(next(iter(values), ""), argument) for argument in node.args[1:2]]
        for name, argument in (*arguments, *((word.arg, word.value) for word in node.keywords)):
            if name in values and literal(argument) is ABSENT:
                yield Computed(argument, name, values[name])


def _expressions_of(node: ast.AST, value: object) -> Iterator[Computed]:
    if isinstance(node, ast.ClassDef):
        yield from _of_class(node, value, node.name)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield from _defaults(node.args, function_of(node, value))
    elif isinstance(node, ast.Lambda) and isinstance(value, FunctionType):
        yield from _defaults(node.args, value)
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        yield from _made_arguments(node.value, value)


def function_of(node: ast.FunctionDef | ast.AsyncFunctionDef, value: object) -> FunctionType | None:
    """Returns the function that the ``def`` has made, among those that ``value`` is made of."""
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    codes = ((function, function.__code__) for function in functions(value))
    return next(
        (function for function, code in codes if (code.co_name, code.co_firstlineno) == (node.name, first)), None
    )


def _defaults(arguments: ast.arguments, function: FunctionType | None) -> Iterator[Computed]:
    if function is None:
        return
    values = function.__defaults__ or ()
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    if len(values) == len(arguments.defaults):
        for name, node, value in zip(names[len(names) - len(values) :], arguments.defaults, values, strict=True):
            yield Computed(node, name, value)
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if default is not None:
            yield Computed(default, argument.arg, (function.__kwdefaults__ or {}).get(argument.arg, ABSENT))


def _of_class(node: ast.ClassDef, kind: object, path: str) -> Iterator[Computed]:
    if not isinstance(kind, type):
        return
    bound = bindings(node)
    for inner in node.body:
        if isinstance(inner, ast.ClassDef):
            yield from _of_class(inner, _attribute(kind, inner.name), f"{path}.{inner.name}")
        elif isinstance(inner, Definition):
            yield from _expressions_of(inner, _attribute(kind, inner.name))
        elif (name := target(inner)) and isinstance(inner, ast.Assign | ast.AnnAssign) and inner.value is not None:
            value = _attribute(kind, mangle(name, node.name))
            is_again = literal(inner.value) is not ABSENT and len(bound[mangle(name, node.name)]) > 1
            if not is_again and not belongs_to_class(inner.value, value):
                is_set = dataclasses.is_dataclass(kind) or issubclass(kind, enum.Enum | tuple)
                yield Computed(inner.value, name, value, "" if is_set else f"{path}.{mangle(name, node.name)}")


def belongs_to_class(node: ast.expr, value: object) -> bool:
    """Returns whether the value of the expression belongs to its class, as a property or ``dataclasses.field(...)``."""
    called = ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
    return called in ("field", "auto") or (hasattr(type(value), "__get__") and not isinstance(node, ast.Lambda))


def _attribute(kind: type, name: str) -> object:
    """Returns the value of an attribute: of a field its default, of a member of an enum its value."""
    if field := vars(kind).get("__dataclass_fields__", {}).get(name):
        return ABSENT if field.default is dataclasses.MISSING else field.default
    if name in getattr(kind, "_fields", ()):
        return getattr(kind, "_field_defaults", {}).get(name, ABSENT)
    if issubclass(kind, enum.Enum) and name in kind.__members__:
        return ABSENT if isinstance(getattr(kind, "_new_member_", None), FunctionType) else kind.__members__[name].value
    return vars(kind).get(name, ABSENT)


def target(node: ast.stmt) -> str:
    """Returns the name that an assignment binds; empty if it is not one name."""
    targets = getattr(node, "targets", [getattr(node, "target", None)])
    is_plain = isinstance(node, ast.Assign | ast.AnnAssign) and len(targets) == 1
    return targets[0].id if is_plain and isinstance(targets[0], ast.Name) else ""


def mangle(name: str, kind: str) -> str:
    """Returns the attribute for a name in the body of a class."""
    is_private = name.startswith("__") and not name.endswith("__") and kind.strip("_")
    return f"_{kind.lstrip('_')}{name}" if is_private else name


def bindings(node: ast.ClassDef) -> Mapping[str, list[ast.stmt]]:
    """Returns the statements of the class body that bind or delete each attribute, by attribute."""
    bound: dict[str, list[ast.stmt]] = defaultdict(list)
    for inner in node.body:
        gone = {
            deleted.id
            for deleted in ast.walk(inner)
            if isinstance(deleted, ast.Name) and isinstance(deleted.ctx, ast.Del)
        }
        names = binds(inner) | (gone if not isinstance(inner, Definition) else set())
        for name in sorted(names - {"__doc__"}):
            bound[mangle(name, node.name)].append(inner)
    return bound


def functions(value: object) -> list[FunctionType]:
    """Returns the functions that ``value`` was made of, including those that decorators wrap."""
    result, waiting, seen = list[FunctionType](), [value], set[int]()
    while waiting and len(seen) < 100:
        item = waiting.pop()
        if id(item) in seen or isinstance(item, type | ModuleType):
            continue
        seen.add(id(item))
        if isinstance(item, FunctionType):
            result.append(item)
            waiting += [cell.cell_contents for cell in item.__closure__ or () if cell != CellType()]
        waiting += parts(item) if isinstance(item, property | staticmethod | classmethod | functools.partial) else ()
        waiting += getattr(item, "__dict__", {}).values()
    return result


def parts(value: object) -> list[object]:
    """Returns the functions of a property, or the function in a static method, a class method or a partial."""
    each = [getattr(value, name, None) for name in ("fget", "fset", "fdel", "__func__", "func")]
    return [function for function in each if function is not None] or [value]


def is_plain_body(node: ast.ClassDef) -> bool:
    """Returns whether the class body only defines and assigns, so that no code in it changes its values."""
    for statement in node.body:
        if isinstance(statement, Definition):
            if statement.decorator_list or (isinstance(statement, ast.ClassDef) and not is_plain_body(statement)):
                return False
        elif isinstance(statement, ast.Expr):
            if literal(statement.value) is ABSENT:
                return False
        elif not isinstance(statement, ast.Assign | ast.AnnAssign | ast.Pass | Import):
            return False
    return True


def changed_names(node: ast.AST) -> set[str]:
    """Returns the names and attributes that code below ``node`` changes in place, or binds as globals."""
    names: set[str] = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Global):
            names |= {*part.names}
        if not isinstance(part, ast.Subscript | ast.Attribute):
            continue
        if getattr(part, "attr", "") in _CHANGERS or not isinstance(part.ctx, ast.Load):
            inner: ast.expr = part
            while isinstance(inner, ast.Attribute | ast.Subscript):
                inner = inner.value
                names.add(getattr(inner, "attr", getattr(inner, "id", "")))
    return names


def empty_of(value: object) -> object:
    """Returns a registry as it was before anything was registered: empty, or an object with empty containers.

    Runs no method that a class of the user's own has overridden, because it may have side effects in the notebook.
    """
    if hasattr(value, "clear"):
        make, arguments, state = (*value.__reduce_ex__(2), None)[:3]
        empty = make(*arguments)
        if isinstance(state, Mapping):
            vars(empty).update(state)
        base: Any = next(kind for kind in type(value).__mro__ if kind.__module__ in ("builtins", "collections"))
        base.clear(empty)
        return empty
    bare = object.__new__(type(value))
    bare.__dict__.update({k: empty_of(v) if hasattr(v, "clear") else v for k, v in vars(value).items()})
    return bare
