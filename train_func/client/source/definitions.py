"""The expressions that run when a definition is executed: defaults of arguments, and what a class body assigns.

They are not computed again in a worker: where one is no literal and no name that holds the same object, its value
takes its place in the text that travels, in the same lines.
"""

import abc
import ast
import copy
import dataclasses
import enum
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from train_func.client.source.cells import ABSENT, Space, Statement, arguments_of, layers, literal
from train_func.client.source.names import Definition, Import, bound_in_class
from train_func.client.source.values import is_mutable

_CHANGERS = frozenset(
    ("append", "extend", "insert", "pop", "remove", "clear", "sort", "reverse", "update", "setdefault", "add")
)
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


@dataclass(frozen=True)
class Given:
    """An expression of a definition, and the value that it gave; ABSENT when that cannot be seen."""

    node: ast.expr
    name: str
    value: object
    is_default: bool = False
    attribute: str = ""
    """How the module reaches it, as ``Config.rate``; empty for a default, and for a field."""

    @property
    def is_code(self) -> bool:
        """Whether its value belongs to its class, as a property or a field does."""
        is_code = hasattr(type(self.value), "__get__") or isinstance(self.value, dataclasses.Field)
        return is_code and not self.is_default

    @property
    def is_changed(self) -> bool:
        """Whether it is a literal that says something else by now; what calls have put into a default begins anew."""
        text = literal(self.node)
        is_filled = is_mutable(self.value) and not self.attribute and type(text) is type(self.value)
        return not (text is ABSENT or self.value is ABSENT or is_filled) and repr(text) != repr(self.value)

    def is_computed(self, live: Mapping[str, Any]) -> bool:
        """Whether executing it again might give something else."""
        if isinstance(self.node, ast.Lambda) or literal(self.node) is not ABSENT:
            return False
        owner = self.node.value if isinstance(self.node, ast.Attribute) else self.node
        held = live.get(owner.id, ABSENT) if isinstance(owner, ast.Name) else ABSENT
        if isinstance(self.node, ast.Attribute) and held is not ABSENT:
            held = getattr(held, self.node.attr, ABSENT)
        if held is ABSENT or type(held) is not type(self.value):
            return True
        return held is not self.value and (type(held) not in (bool, int, float, str) or repr(held) != repr(self.value))


def given_in(node: ast.stmt, value: object) -> Iterator[Given]:
    """The expressions of the definition ``node``, which made ``value``."""
    if isinstance(node, ast.ClassDef):
        yield from _of_class(node, value if isinstance(value, type) else None, node.name)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        made = [one for one in layers(value) if one.__code__.co_name == node.name]
        yield from _defaults(node.args, next((one for one in made if one.__code__.co_firstlineno == first), None))
    elif isinstance(node, ast.Expr | ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Lambda):
        yield from _defaults(node.value.args, value if isinstance(value, FunctionType) else None)


def _defaults(arguments: ast.arguments, function: FunctionType | None) -> Iterator[Given]:
    given = (function.__defaults__ or ()) if function else ()
    named = (function.__kwdefaults__ or {}) if function else {}
    names = arguments_of(arguments)
    for index, node in enumerate(arguments.defaults, start=-len(arguments.defaults)):
        name = names[: len(names) - len(arguments.kwonlyargs)][index]
        value = given[index] if len(given) == len(arguments.defaults) else ABSENT
        yield from _with_lambda(Given(node, name, value, is_default=True))
    for argument, word in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if word is not None:
            yield from _with_lambda(Given(word, argument.arg, named.get(argument.arg, ABSENT), is_default=True))


def _with_lambda(given: Given) -> Iterator[Given]:
    """The expression, and the defaults of the lambda that it is, or that ``staticmethod`` and its like are given."""
    yield given
    inner, function = given.node, getattr(given.value, "__func__", given.value)
    if isinstance(inner, ast.Call) and inner.args and given.is_code:
        inner = inner.args[0]
    if isinstance(inner, ast.Lambda):
        yield from _defaults(inner.args, function if isinstance(function, FunctionType) else None)


def _of_class(node: ast.ClassDef, kind: type | None, path: str) -> Iterator[Given]:
    for inner in node.body:
        if isinstance(inner, Definition):
            value = vars(kind).get(_mangled(inner.name, node), ABSENT) if kind else ABSENT
            if isinstance(inner, ast.ClassDef):
                yield from _of_class(inner, value if isinstance(value, type) else None, f"{path}.{inner.name}")
            else:
                yield from given_in(inner, value)
        elif isinstance(inner, ast.Assign | ast.AnnAssign) and inner.value is not None:
            target = inner.targets[0] if isinstance(inner, ast.Assign) else inner.target
            yield from _assigned(node, kind, target, inner.value, path)


def _assigned(node: ast.ClassDef, kind: type | None, target: ast.expr, value: ast.expr, path: str) -> Iterator[Given]:
    called = ast.unparse(value.func).rpartition(".")[2] if isinstance(value, ast.Call) else ""
    if isinstance(target, ast.Name) and called != "auto":
        if called == "field" and isinstance(value, ast.Call):
            defaults = [word.value for word in value.keywords if word.arg == "default"]
            yield from (Given(one, target.id, _attribute(kind, target.id, node)) for one in defaults)
            return
        is_field = kind is None or dataclasses.is_dataclass(kind) or issubclass(kind, enum.Enum | tuple)
        attribute = "" if is_field else f"{path}.{_mangled(target.id, node)}"
        yield from _with_lambda(Given(value, target.id, _attribute(kind, target.id, node), attribute=attribute))
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for one, part in zip(target.elts, value.elts, strict=True):
            yield from _assigned(node, kind, one, part, path)
    elif isinstance(target, ast.Tuple):
        names = [one.id for one in target.elts if isinstance(one, ast.Name)]
        parts = [_attribute(kind, name, node) for name in names]
        is_seen = len(names) == len(target.elts) and not any(part is ABSENT for part in parts)
        yield Given(value, ", ".join(names), tuple(parts) if is_seen else ABSENT)


def _attribute(kind: type | None, name: str, owner: ast.ClassDef) -> object:
    if kind is None:
        return ABSENT
    if issubclass(kind, enum.Enum) and name in kind.__members__:
        return ABSENT if "__new_member__" in vars(kind) else kind.__members__[name]._value_
    fields = vars(kind).get("__dataclass_fields__", {})
    if name in fields:
        return ABSENT if fields[name].default is dataclasses.MISSING else fields[name].default
    defaults = getattr(kind, "_field_defaults", {})  # of a named tuple
    return defaults[name] if name in defaults else vars(kind).get(_mangled(name, owner), ABSENT)


def _mangled(name: str, owner: ast.ClassDef) -> str:
    is_private = name.startswith("__") and not name.endswith("__")
    return f"_{owner.name.lstrip('_')}{name}" if is_private else name


def attributes_added(node: ast.stmt, value: object) -> list[str]:
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
    names = [slots] if isinstance(slots, str) else [*slots]
    bound = {*bound_in_class(node), *vars(value).get("__dataclass_fields__", ()), *(_mangled(n, node) for n in names)}
    return [
        name
        for name in vars(value)
        if name not in bound and not (name.startswith("__") and name.endswith("__")) and not name.startswith("_abc_")
    ]


def changed_within(node: ast.AST) -> set[str]:
    """The names and attributes that code below ``node`` changes in place, as a registry, or binds as globals."""
    names: set[str] = set()
    for one in ast.walk(node):
        if isinstance(one, ast.Global):
            names |= {*one.names}
        if not isinstance(one, ast.Subscript | ast.Attribute):
            continue
        if getattr(one, "attr", "") in _CHANGERS or not isinstance(one.ctx, ast.Load):
            inner = one.value
            while isinstance(inner, ast.Attribute | ast.Subscript):
                names |= {inner.attr} if isinstance(inner, ast.Attribute) else set()
                inner = inner.value
            names |= {inner.id} if isinstance(inner, ast.Name) else set()
    return names


def bound_since(statement: Statement, space: Space) -> Iterator[str]:
    """The faults of a definition that was made of a base or by a decorator which is another one by now."""
    node = statement.node
    if not isinstance(node, Definition):
        return
    methods = [one for one in node.body if isinstance(one, Definition)] if isinstance(node, ast.ClassDef) else []
    made_of = [decorator for each in (node, *methods) for decorator in each.decorator_list]
    made_of += [*node.bases, *(word.value for word in node.keywords)] if isinstance(node, ast.ClassDef) else []
    for name in (one for each in made_of for one in ast.walk(each)):
        if not isinstance(name, ast.Name) or name.id in {one.name for one in methods}:
            continue
        binders = space.binders.get(name.id, [])
        before = [one for one in binders if statement.comes_after(one)]
        if before and before[-1].source != binders[-1].source and not isinstance(binders[-1].node, Import):
            yield (
                f"{statement.place(name.lineno)}: {name.id!r} was bound again after this was defined "
                f"({binders[-1].place()}). Run this cell again, or give one of the two another name"
            )


def is_same_class(held: object, value: object) -> bool:
    """Whether ``held`` is the class of an unchanged cell that was executed again after it had made ``value``."""
    return isinstance(held, type) and isinstance(value, type) and _content(held) == _content(value)


def _content(kind: type) -> object:
    """What tells a class from another one of its name: its bases, its code, and what it holds of plain values."""
    bases = [_content(one) if one.__module__ == kind.__module__ else one for one in kind.__bases__]
    parts = {name: _sign(one) for name, one in vars(kind).items() if name != "__static_attributes__"}
    return kind.__qualname__, bases, parts


def _sign(value: object) -> object:
    if isinstance(value, type):
        return value.__module__, value.__qualname__
    made = [(one.__code__, *map(_sign_of_default, one.__defaults__ or ())) for one in layers(value)]
    if made or type(value).__module__ != "builtins":
        return made or type(value).__qualname__
    return _ADDRESS.sub("", repr(value))


def _sign_of_default(value: object) -> object:
    return id(value) if is_mutable(value) else _sign(value)


def empty_of(value: object) -> object:
    """What a registry was before anything was registered: empty, or an object whose containers are."""
    if hasattr(value, "clear"):
        empty = copy.copy(value)
        empty.clear()
        return empty
    made = object.__new__(type(value))
    made.__dict__.update({k: empty_of(v) if hasattr(v, "clear") else v for k, v in vars(value).items()})
    return made
