"""Changes since a definition was executed: attributes that were set on it, and names that it used."""

import abc
import ast
import dis
import enum
import inspect
from collections.abc import Iterable, Iterator, Mapping
from types import CodeType, FunctionType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import NamedTuple, cast

from train_func.client.source.cells import ABSENT, Space, Statement, is_same_literal, layers, literal
from train_func.client.source.definitions import (
    belongs_to_class,
    bindings,
    changed_names,
    function_of,
    functions,
    parts,
    target,
)
from train_func.client.source.names import Definition, Import

_IMPLICIT = frozenset(("__new__", "__init_subclass__", "__class_getitem__"))  # which type() wraps by itself
_METACLASSES = (type, abc.ABCMeta)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class Change(NamedTuple):
    """An attribute of a definition that executing its text alone would not make."""

    path: str
    """Its path in the module, as ``Net.forward``."""
    value: object
    """ABSENT if it was deleted."""
    node: ast.stmt | None
    """Its node in the text."""
    is_made: bool
    """Whether the code of a decorator, a base or a metaclass may have made it, and will make it again."""


def changes(node: ast.stmt, value: object, space: Space) -> Iterator[Change]:
    """Yields the attributes that were set on a function or a class, or deleted, since its definition was executed."""
    if isinstance(node, ast.ClassDef) and isinstance(value, type):
        yield from _changes_of_class(node, value, node.name, space)
    elif isinstance(node, _Function):
        yield from _changes_of_function(node, value, node.name, space)


def _changes_of_function(node: _Function, value: object, path: str, space: Space) -> Iterator[Change]:
    function, is_made = function_of(node, value), bool(node.decorator_list)
    if function is None or isinstance(value, type):
        return
    is_bare = function in (value, getattr(value, "__func__", None))
    if is_bare:
        path += ".__func__" if isinstance(value, classmethod) else ""
        named = {
            argument.arg
            for argument, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            if default
        }
        if len(function.__defaults__ or ()) != len(node.args.defaults):
            yield Change(f"{path}.__defaults__", function.__defaults__, node, is_made=False)
        if (function.__kwdefaults__ or {}).keys() != named:
            yield Change(f"{path}.__kwdefaults__", function.__kwdefaults__, node, is_made=False)
    for name, attribute in getattr(function if is_bare else value, "__dict__", {}).items():
        if not name.startswith("__") and function not in functions(attribute):
            yield Change(f"{path}.{name}", attribute, None, is_made)


def _changes_of_class(node: ast.ClassDef, kind: type, path: str, space: Space) -> Iterator[Change]:
    bound = bindings(node)
    fields = vars(kind).get("__dataclass_fields__", {})
    decorators = {
        ast.unparse(getattr(decorator, "func", decorator)).rpartition(".")[2] for decorator in node.decorator_list
    }
    is_hooked = any("__init_subclass__" in vars(base) and base.__module__ != "typing" for base in kind.__mro__[1:-1])
    is_made = is_hooked or type(kind) not in _METACLASSES or bool(decorators - {"dataclass"})
    for name, value in vars(kind).items():
        last = bound[name][-1] if name in bound else None
        if last is None:
            if not _is_python_s(kind, name, space):
                yield Change(f"{path}.{name}", value, None, is_made)
        elif not _is_said(node, kind, name, bound[name], space):
            is_code = hasattr(type(value), "__get__") or isinstance(value, ModuleType)
            is_again = bool(last.decorator_list) if isinstance(last, Definition) else is_code
            yield Change(f"{path}.{name}", value, last, is_made or is_again)
        elif isinstance(last, Definition):
            for change in changes(last, value, space):
                yield change._replace(path=f"{path}.{name}{change.path.removeprefix(last.name)}")
    for name in (attribute for attribute in bound if attribute not in vars(kind) and attribute not in fields):
        last = bound[name][-1]
        if isinstance(last, Definition | ast.Assign | ast.AnnAssign) and not issubclass(kind, enum.Enum):
            yield Change(f"{path}.{name}", ABSENT, last, is_made)


def _is_python_s(kind: type, name: str, space: Space) -> bool:
    """Returns whether every class of its kind has the attribute, although its body does not bind it."""
    value, is_plain = vars(kind)[name], type(kind) in _METACLASSES and not issubclass(kind, tuple)
    if isinstance(value, FunctionType) and value.__globals__ is space.live:
        is_generated = value.__code__.co_filename == "<string>"  # as a dataclass makes them
        is_moved = not is_plain and name.startswith("_") and value.__qualname__.startswith(f"{kind.__qualname__}.")
        return is_generated or is_moved
    is_slot = isinstance(value, MemberDescriptorType | GetSetDescriptorType)
    return is_slot or name.startswith(("__", "_abc_") if is_plain else "_") or _is_member(kind, name)


def _is_member(kind: type, name: str) -> bool:
    """Returns whether it is a member of an enum or a field of a named tuple, made from the class body."""
    is_of_enum = isinstance(kind, enum.EnumMeta) and (name in kind.__members__ or name == "__new__")
    return is_of_enum or name in getattr(kind, "_fields", ())


def _is_said(node: ast.ClassDef, kind: type, name: str, binders: list[ast.stmt], space: Space) -> bool:
    """Returns whether the class body, with values in place of its expressions, makes this attribute."""
    value, last = vars(kind)[name], binders[-1]
    inside = {*ast.walk(node)}
    methods = {function.name for binder in binders for function in ast.walk(binder) if isinstance(function, _Function)}

    def is_written(part: object, names: Iterable[str] = methods) -> bool:
        made_by = space.definition_at(part.__code__) if isinstance(part, FunctionType) else None
        return made_by is not None and made_by.node in inside and made_by.name in names

    if _is_member(kind, name) or isinstance(value, MemberDescriptorType):
        return True
    if isinstance(last, ast.ClassDef):
        return isinstance(value, type) and value.__qualname__ == f"{kind.__qualname__}.{last.name}"
    if isinstance(last, Definition) and not last.decorator_list:
        return is_written(value if name not in _IMPLICIT else parts(value)[0])
    if methods:
        return all(any(map(is_written, functions(part))) for part in parts(value))
    if len(binders) > 1 or not target(last):
        return False
    field = vars(kind).get("__dataclass_fields__", {}).get(name)
    if field is not None:
        return field.default is value or is_same_literal(field.default, value)
    expression: ast.expr = last.value  # type: ignore[attr-defined]
    if isinstance(expression, ast.Lambda):
        return isinstance(value, FunctionType) and value.__code__.co_firstlineno == expression.lineno
    if belongs_to_class(expression, value) and isinstance(expression, ast.Name):
        return space.live.get(expression.id, ABSENT) is value or is_written(value, [expression.id])
    return not belongs_to_class(expression, value)


def sets(node: ast.stmt, attribute: str) -> bool:
    """Returns whether code of the statement sets or deletes the attribute, or has its name, as for ``setattr``."""
    nodes = [*ast.walk(node)]
    is_by_name = any(isinstance(part, ast.Name) and part.id in ("setattr", "delattr") for part in nodes)
    return any(
        (isinstance(part, ast.Attribute) and part.attr == attribute and not isinstance(part.ctx, ast.Load))
        or (is_by_name and isinstance(part, ast.Constant) and part.value == attribute)
        for part in nodes
    )


def set_elsewhere(tree: ast.AST) -> set[str]:
    """Returns the attributes that code sets on objects by name, as ``settings.rate = 1``."""
    owned = [
        attribute
        for attribute in ast.walk(tree)
        if isinstance(attribute, ast.Attribute) and isinstance(attribute.ctx, ast.Store)
    ]
    return {
        attribute.attr for attribute in owned if isinstance(attribute.value, ast.Name) and attribute.value.id != "self"
    }


def set_on(module: str, node: ast.AST, live: Mapping[str, object]) -> Iterator[str]:
    """Yields the names of a module that a statement sets, or sets something on, as ``module.config.rate = 1``."""
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute | ast.Subscript) and not isinstance(part.ctx, ast.Load):
            path, inner = "", cast("ast.expr", part)
            while isinstance(inner, ast.Attribute | ast.Subscript):
                path, inner = getattr(inner, "attr", ""), inner.value
            owner = live.get(inner.id) if isinstance(inner, ast.Name) else None
            if isinstance(owner, ModuleType) and owner.__name__ == module and path:
                yield path


def _executed(node: ast.stmt) -> Iterator[ast.expr]:
    """Yields the code of a definition that a worker executes: decorators, and calls that make bases."""
    if isinstance(node, Definition):
        yield from node.decorator_list
    if isinstance(node, ast.ClassDef):
        yield from (
            call for call in (*node.bases, *(word.value for word in node.keywords)) if isinstance(call, ast.Call)
        )
        for inner in node.body:
            yield from _executed(inner)


def change_since(
    space: Space, statement: Statement, node: ast.stmt | None, value: object
) -> tuple[str, Statement] | None:
    """Returns a name that a worker needs to make ``value`` by ``node``, and the statement that changed it since."""
    nodes = [*_executed(node)] if node else []
    if isinstance(value, type) and isinstance(node, ast.Assign | ast.AnnAssign) and node.value:  # a call has made it
        nodes.append(node.value)
    waiting = [use.id for node in nodes for use in ast.walk(node) if isinstance(use, ast.Name)]
    inside = bindings(node) if isinstance(node, ast.ClassDef) else {}  # as of the x in @x.setter
    waiting = [name for name in waiting if name not in inside]
    names, registries = dict[str, Statement](), set[str]()
    while waiting:
        name = waiting.pop()
        binders = [binder for binder in space.binders.get(name, ()) if statement.comes_after(binder)]
        if name in names or not binders:
            continue
        names[name] = binders[-1]
        value = space.live.get(name)
        for function in layers(vars(value).get("__init__") if isinstance(value, type) else value):
            if function.__globals__ is space.live:
                made_by = space.definition_at(function.__code__)
                registries |= changed_names(made_by.node) if made_by else set()
                waiting += _globals(function.__code__)
    later = [other for other in space.statements if other.comes_after(statement)]
    for name, before in sorted(names.items()):
        value = space.live.get(name, ABSENT)
        definition = space.definition_of(value)
        is_same = isinstance(before.node, Import) or (definition is not None and definition.source == before.source)
        if is_same or (target(before.node) and is_same_literal(literal(before.node.value), value)):  # type: ignore[attr-defined]
            continue
        for other in reversed(later):
            is_edit = name not in registries and not isinstance(other.node, Definition)
            if other in space.binders[name] or (is_edit and name in changed_names(other.node)):
                return name, other
    return None


def _globals(code: CodeType) -> set[str]:
    """Returns the globals that executing ``code`` looks up, without those of functions that it only defines."""
    names = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    inner = [part for part in code.co_consts if isinstance(part, CodeType)]
    runs = (
        part for part in inner if not part.co_flags & inspect.CO_OPTIMIZED or part.co_name.endswith(("comp>", "expr>"))
    )
    return names.union(*map(_globals, runs))
