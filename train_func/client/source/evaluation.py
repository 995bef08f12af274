"""Evaluates the harmless part of Python, to see whether a constant still has the value its statement gives."""

import ast
import builtins
import dataclasses
import math
from collections.abc import Mapping
from typing import Any

# Builtins without effects, whose result depends on nothing but their arguments.
_PURE = frozenset(
    f.__name__
    for f in (
        *(abs, all, any, bin, bool, bytes, chr, complex, dict, divmod, enumerate, float, frozenset, hex, int, len),
        *(list, max, min, oct, ord, pow, range, reversed, round, set, slice, sorted, str, sum, tuple, zip),
    )
)
# Methods of texts, numbers and containers that change nothing.
_METHODS = frozenset(
    (
        *("split", "rsplit", "splitlines", "join", "strip", "lstrip", "rstrip", "lower", "upper", "title", "replace"),
        *("format", "startswith", "endswith", "removeprefix", "removesuffix", "encode", "decode", "count", "index"),
        *("find", "keys", "values", "items", "get", "copy", "union", "intersection", "difference"),
    )
)
_PLAIN = (type(None), bool, int, float, complex, str, bytes, range)
_NODES = (
    *(ast.Constant, ast.Name, ast.Load, ast.Store, ast.Tuple, ast.List, ast.Dict, ast.Set, ast.BinOp, ast.UnaryOp),
    *(ast.BoolOp, ast.Compare, ast.IfExp, ast.Subscript, ast.Slice, ast.JoinedStr, ast.FormattedValue, ast.Starred),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.comprehension, ast.Call, ast.keyword),
    *(ast.Attribute, ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
)


class NotHarmless(Exception):
    """The expression does, or may do, more than compute a value."""


def evaluate(expression: ast.expr, live: Mapping[str, Any]) -> object:
    """The value of ``expression``, made only of literals, operators, plain constants of ``live`` and pure calls.

    Raises:
        NotHarmless: when it is made of anything else, or fails.
    """
    bound = {n.id for n in ast.walk(expression) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    names: dict[str, Any] = {}
    for node in ast.walk(expression):
        if not isinstance(node, _NODES):
            raise NotHarmless(type(node).__name__)
        if isinstance(node, ast.Attribute) and node.attr not in _METHODS and not _is_math(node.value, live):
            raise NotHarmless(node.attr)
        if isinstance(node, ast.Name) and node.id not in bound:
            names[node.id] = _value(node.id, live)
    try:
        code = compile(ast.fix_missing_locations(ast.Expression(expression)), "<constant>", "eval")
        value = eval(code, {"__builtins__": {}, **names})
    except Exception as error:
        raise NotHarmless(str(error)) from error
    if hasattr(type(value), "__next__"):
        raise NotHarmless("an iterator equals nothing but itself")
    return value


def same(one: object, other: object) -> bool:
    """Equal in type and value; a NaN equals a NaN."""
    if type(one) is not type(other) and type(one).__qualname__ != type(other).__qualname__:
        return False  # a class whose cell was executed again has the same name
    try:
        if dataclasses.is_dataclass(one):
            return repr(one) == repr(other) and same(vars(one), vars(other))
        return bool(one == other) or repr(one) == repr(other)
    except Exception:
        return True  # values that cannot be compared are not accused


def _value(name: str, live: Mapping[str, Any]) -> object:
    value = live.get(name, getattr(builtins, name, None) if name in _PURE else None)
    if name in _PURE and value is getattr(builtins, name):
        return value
    if name in live and (value is math or _is_plain(value) or _is_record(value)):
        return value
    raise NotHarmless(name)


def _is_math(node: ast.expr, live: Mapping[str, Any]) -> bool:
    return isinstance(node, ast.Name) and live.get(node.id) is math


def _is_plain(value: object, depth: int = 0) -> bool:
    if isinstance(value, _PLAIN):
        return type(value) in _PLAIN
    if depth > 4 or type(value) not in {list, tuple, set, frozenset, dict}:
        return False
    assert isinstance(value, list | tuple | set | frozenset | dict)
    inner = [*value, *value.values()] if isinstance(value, dict) else value
    return all(_is_plain(one, depth + 1) for one in inner)


def _is_record(value: object) -> bool:
    """A dataclass whose making runs only generated code."""
    if not (isinstance(value, type) and dataclasses.is_dataclass(value)) or hasattr(value, "__post_init__"):
        return False
    factories = {f.default_factory for f in dataclasses.fields(value)} - {dataclasses.MISSING}
    init = getattr(value.__init__, "__code__", None)
    return init is not None and init.co_filename == "<string>" and factories <= {list, dict, set, tuple}
