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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any

from train_func.client.source.piece import ImportStatement
from train_func.client.source.space import Space, layers
from train_func.client.source.statements import Definition, Statement, from_byte, parsed
from train_func.client.source.uses import bound_in_class
from train_func.client.source.values import is_mutable, is_plain
from train_func.source_file import split_lines

ABSENT = object()


@dataclass(frozen=True)
class Computed:
    """An expression of a header, and the value that it gave; ABSENT when that cannot be seen."""

    node: ast.expr
    name: str
    value: object
    is_default: bool = False
    attribute: str = ""
    """How the module reaches it, as ``Config.rate``; empty for a default, and for a field."""
    is_changed: bool = False
    """Whether the expression is a literal that says something else."""

    @property
    def calls(self) -> bool:
        """Whether it may give another value each time."""
        waiting: list[ast.AST] = [self.node]
        while waiting:
            one = waiting.pop()
            if isinstance(one, ast.Call | ast.Await):
                return True
            if not isinstance(one, ast.Lambda):
                waiting.extend(ast.iter_child_nodes(one))
        return False

    @property
    def is_code(self) -> bool:
        """Whether its value belongs to its class, as a property or a field does."""
        return hasattr(type(self.value), "__get__") or isinstance(self.value, dataclasses.Field)


def computed_in(statement: Statement, value: object, live: Mapping[str, Any]) -> Iterator[Computed]:
    """The expressions of the definition ``statement``, which made ``value``, whose values have to be looked at."""
    node = statement.node
    if isinstance(node, ast.ClassDef):
        found = _of_class(node, value if isinstance(value, type) else None, node.name)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        found = _of_function(node, value)
    else:
        return
    yield from _to_see((one for each in found for one in _with_lambdas(each)), live)


def computed_by(node: ast.Lambda, function: FunctionType, live: Mapping[str, Any]) -> Iterator[Computed]:
    """The defaults of the lambda ``function`` whose values have to be looked at."""
    return _to_see((one for each in _defaults(node.args, function) for one in _with_lambdas(each)), live)


def _to_see(found: Iterable[Computed], live: Mapping[str, Any]) -> Iterator[Computed]:
    for one in found:
        if isinstance(one.node, ast.Lambda) or _is_same(_seen(one.node, live), one.value):
            continue
        literal = _literal(one.node)
        if literal is ABSENT:
            yield one
        elif one.value is ABSENT or (is_mutable(one.value) and not one.attribute):
            continue  # what the calls have changed of a default begins anew
        elif repr(literal) != repr(one.value):
            yield replace(one, is_changed=True)


def rewritten(statement: Statement, expressions: Mapping[ast.expr, str]) -> str:
    """The statement with other expressions in the same lines."""
    lines = split_lines(statement.source)
    for node in sorted(expressions, key=lambda one: (one.lineno, one.col_offset), reverse=True):
        first, last = node.lineno - statement.first, (node.end_lineno or node.lineno) - statement.first
        tail = from_byte(lines[last], node.end_col_offset or 0)
        head = lines[first].encode()[: node.col_offset].decode()
        breaks = ["".join(c for c in line[-2:] if c in "\r\n") for line in lines[first:last]]
        text = f"({expressions[node]}{''.join(breaks)})" if breaks else expressions[node]
        *others, end = text.splitlines(keepends=True) if breaks else [text]
        lines[first : last + 1] = [*_with_head(head, others), (end if others else head + end) + tail]
    return "".join(lines)


def _with_head(head: str, lines: list[str]) -> list[str]:
    return [head + lines[0], *lines[1:]] if lines else []


def _of_function(node: ast.FunctionDef | ast.AsyncFunctionDef, value: object) -> Iterator[Computed]:
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    function = next((f for f in layers(value) if _is_of(f, node.name, first)), None)
    yield from _defaults(node.args, function)


def _with_lambdas(one: Computed) -> Iterator[Computed]:
    """The expression, and the defaults of the lambda that it is, or that ``staticmethod`` and its like are given."""
    yield one
    called = isinstance(one.node, ast.Call) and one.is_code
    inner = next((arg for arg in one.node.args), None) if isinstance(one.node, ast.Call) and called else one.node
    if isinstance(inner, ast.Lambda):
        first, names = inner.lineno, _names(inner.args)
        functions = (f for f in layers(one.value) if _is_of(f, "<lambda>", first) and _names_of(f) == names)
        for default in _defaults(inner.args, next(functions, None)):
            yield from _with_lambdas(default)


def _names(arguments: ast.arguments) -> list[str]:
    return [one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def _names_of(function: FunctionType) -> list[str]:
    code = function.__code__
    return [*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]]


def _defaults(arguments: ast.arguments, function: FunctionType | None) -> Iterator[Computed]:
    given = (function.__defaults__ or ()) if function else ()
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)][-len(arguments.defaults) :]
    for index, default in enumerate(arguments.defaults):
        is_seen = len(given) == len(arguments.defaults)
        yield Computed(default, names[index], given[index] if is_seen else ABSENT, is_default=True)
    named = (function.__kwdefaults__ or {}) if function else {}
    for argument, word in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if word is not None:
            yield Computed(word, argument.arg, named.get(argument.arg, ABSENT), is_default=True)


def _is_of(function: FunctionType, name: str, first: int) -> bool:
    code = function.__code__
    return code.co_name == name and code.co_firstlineno == first


def _of_class(node: ast.ClassDef, kind: type | None, path: str) -> Iterator[Computed]:
    for inner in node.body:
        if isinstance(inner, Definition):
            value = vars(kind).get(_mangled(inner.name, node), ABSENT) if kind else ABSENT
            if isinstance(inner, ast.ClassDef):
                yield from _of_class(inner, value if isinstance(value, type) else None, f"{path}.{inner.name}")
            else:
                yield from _of_function(inner, value)
        elif isinstance(inner, ast.Assign | ast.AnnAssign) and inner.value is not None:
            target = inner.targets[0] if isinstance(inner, ast.Assign) else inner.target
            yield from _assigned(node, kind, target, inner.value, path)


def _assigned(
    node: ast.ClassDef, kind: type | None, target: ast.expr, value: ast.expr, path: str
) -> Iterator[Computed]:
    if isinstance(target, ast.Name):
        field = _default_of_field(value)
        found = _attribute(kind, _mangled(target.id, node), target.id)
        is_own = (
            isinstance(kind, type) and not dataclasses.is_dataclass(kind) and not issubclass(kind, enum.Enum | tuple)
        )
        if field is not None:
            yield Computed(field, target.id, found)
        elif not _is_auto(value):
            attribute = f"{path}.{_mangled(target.id, node)}" if is_own else ""
            yield Computed(value, target.id, found, attribute=attribute)
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for one, part in zip(target.elts, value.elts, strict=True):
            yield from _assigned(node, kind, one, part, path)
    elif isinstance(target, ast.Tuple) and all(isinstance(one, ast.Name) for one in target.elts):
        names = [one.id for one in target.elts if isinstance(one, ast.Name)]
        parts = [_attribute(kind, _mangled(name, node), name) for name in names]
        yield Computed(value, ", ".join(names), ABSENT if ABSENT in parts else tuple(parts))


def attributes_added(node: ast.stmt, value: object) -> list[str]:
    """The attributes of a class that its body does not bind, as ``setattr`` makes them.

    Not those of a class that other code completes while it is made: that code runs where the class is made again.
    """
    if not isinstance(node, ast.ClassDef) or not isinstance(value, type) or type(value) not in (type, abc.ABCMeta):
        return []
    completes = any("__init_subclass__" in vars(base) and base.__module__ != "typing" for base in value.__mro__[1:-1])
    if completes or issubclass(value, tuple) or any(not _is_dataclass(one) for one in node.decorator_list):
        return []
    bound = {*bound_in_class(node), *getattr(value, "__dataclass_fields__", ())}
    slots = getattr(value, "__slots__", ())
    bound |= {_mangled(name, node) for name in ([slots] if isinstance(slots, str) else slots)}
    return [name for name in vars(value) if name not in bound and not _is_generated(name)]


def _is_dataclass(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(called).rpartition(".")[2] == "dataclass"


def _is_generated(name: str) -> bool:
    return (name.startswith("__") and name.endswith("__")) or name.startswith("_abc_")


def _attribute(kind: type | None, name: str, field: str) -> object:
    if kind is None:
        return ABSENT
    if issubclass(kind, enum.Enum) and name in kind.__members__:
        return ABSENT if "__new_member__" in vars(kind) else kind.__members__[name]._value_
    fields = getattr(kind, "__dataclass_fields__", {})
    if field in fields and "__dataclass_fields__" in vars(kind):
        default = fields[field].default
        return ABSENT if default is dataclasses.MISSING else default
    defaults = getattr(kind, "_field_defaults", {})  # of a named tuple
    if field in defaults:
        return defaults[field]
    return vars(kind).get(name, ABSENT)


def _default_of_field(value: ast.expr) -> ast.expr | None:
    """``3`` in ``field(default=3)``."""
    if isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] == "field":
        return next((word.value for word in value.keywords if word.arg == "default"), None)
    return None


def _is_auto(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] == "auto"


def _mangled(name: str, owner: ast.ClassDef) -> str:
    is_private = name.startswith("__") and not name.endswith("__")
    return f"_{owner.name.lstrip('_')}{name}" if is_private else name


def _seen(node: ast.expr, live: Mapping[str, Any]) -> object:
    """What a name, or an attribute of one, holds now."""
    if isinstance(node, ast.Name):
        return live.get(node.id, ABSENT)
    if isinstance(node, ast.Attribute):
        owner = _seen(node.value, live)
        return ABSENT if owner is ABSENT else getattr(owner, node.attr, ABSENT)
    return ABSENT


def _is_same(held: object, value: object) -> bool:
    if held is ABSENT or value is ABSENT:
        return False
    is_atom = type(held) is type(value) and type(value) in (bool, int, float, complex, str, bytes)
    return held is value or (is_atom and repr(held) == repr(value))


def _literal(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return ABSENT


def with_defaults(node: ast.Lambda, texts: dict[tuple[int, int], str]) -> str:
    """The text of a lambda with other expressions for its defaults, by the line and column of each."""
    return ast.unparse(_Replaced(texts).visit(copy.deepcopy(node)))


class _Replaced(ast.NodeTransformer):
    """A lambda with other expressions for the defaults at some places."""

    def __init__(self, texts: dict[tuple[int, int], str]) -> None:
        self._texts = texts

    def visit_arguments(self, node: ast.arguments) -> ast.arguments:
        """Puts an expression in the place of each default that has one."""
        node.defaults = [self._given(one) for one in node.defaults]
        node.kw_defaults = [one and self._given(one) for one in node.kw_defaults]
        return node

    def _given(self, node: ast.expr) -> ast.expr:
        text = self._texts.get((node.lineno, node.col_offset))
        if text is None:
            visited = self.visit(node)
            assert isinstance(visited, ast.expr)
            return visited
        return ast.parse(text, mode="eval").body


def moved(source: str, statement: Statement) -> ast.stmt:
    if not statement.is_indented:
        node = parsed(source).body[0]
        ast.increment_lineno(node, statement.first - 1)
        return node
    block = parsed("if True:\n" + source).body[0]
    assert isinstance(block, ast.If)
    ast.increment_lineno(block, statement.first - 2)
    return block.body[0]


def looked_up(owner: object, path: str) -> object:
    for name in filter(None, path.split(".")):
        owner = getattr(owner, name, None)
    return owner


def is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
        return True
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False


def mutable_defaults(value: object) -> list[object]:
    """The defaults of a function, and of those that it was put around, that a call of it may change."""
    given = [one for f in layers(value) for one in (*(f.__defaults__ or ()), *(f.__kwdefaults__ or {}).values())]
    return [one for one in given if is_mutable(one)]


def is_successor(held: object, value: object) -> bool:
    """Whether ``held`` is the class of an unchanged cell that was executed again after it had made ``value``."""
    return isinstance(held, type) and isinstance(value, type) and _content(held) == _content(value)


def _content(kind: type) -> dict[str, object]:
    """What tells a class from another one of its name: its bases, its code, and what it holds of plain values."""
    bases = [_content(one) if one.__module__ == kind.__module__ else one for one in kind.__bases__]
    parts = {name: _sign(one) for name, one in vars(kind).items() if name != "__static_attributes__"}
    return {"": (kind.__qualname__, bases), **parts}


def _sign(value: object) -> object:
    if isinstance(value, type):
        return value.__module__, value.__qualname__
    codes = [(one.__code__, _shown(one.__defaults__), _shown(one.__kwdefaults__)) for one in layers(value)]
    if codes:
        return codes, [id(one) for one in mutable_defaults(value)]
    return _shown(value) if is_plain(value) else type(value).__qualname__


def _shown(value: object) -> str:
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def bound_since(statement: Statement, space: Space) -> Iterator[str]:
    """The faults of a definition that was made of a base or by a decorator which is another one by now."""
    for name in _made_of(statement.node):
        binders = space.binders.get(name.id, [])
        before = [one for one in binders if statement.comes_after(one)]
        if before and before[-1].source != binders[-1].source and not isinstance(binders[-1].node, ImportStatement):
            yield (
                f"{statement.place(name.lineno)}: {name.id!r} was bound again after this was defined "
                f"({binders[-1].place()}). Run this cell again, or give one of the two another name"
            )


def _made_of(node: ast.stmt) -> Iterator[ast.Name]:
    """The names in the bases and decorators of a definition, and in the decorators of its methods."""
    if not isinstance(node, Definition):
        return
    inner = [one for one in node.body if isinstance(one, Definition) and isinstance(node, ast.ClassDef)]
    decorators = [one for each in (node, *inner) for one in each.decorator_list]
    bases = [*node.bases, *(word.value for word in node.keywords)] if isinstance(node, ast.ClassDef) else []
    own = {one.name for one in inner}
    for one in (name for each in (*decorators, *bases) for name in ast.walk(each)):
        if isinstance(one, ast.Name) and one.id not in own:
            yield one
