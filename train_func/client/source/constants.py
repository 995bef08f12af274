"""The rule for constants: which assignments of a cell may be executed again in every worker.

A constant travels as its statement. That statement must be an assignment to names, made of literals, operators and
calls of names that travel themselves; it may not read a file or ask a person, and must give the same value each time.
The value must be plain: texts, numbers, containers, dataclasses and objects of own classes made of those, functions,
classes, modules, types, patterns, paths, dates, loggers, arrays and tensors; anything else of an installed package is
built inside the function. The value must still be the one its statement gives.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from train_func.client.source.alive import why_alive
from train_func.client.source.statements import DEFINITIONS, Statement
from train_func.client.source.uses import binds

ASSIGNMENTS: tuple[type[ast.stmt], ...] = (ast.Assign, ast.AnnAssign, ast.AugAssign)
if hasattr(ast, "TypeAlias"):  # Python 3.12: type Name = ...
    ASSIGNMENTS += (ast.TypeAlias,)
RULE = (
    "the statement of a constant is executed again in every worker, so it may only be an assignment of literals, "
    "operators and calls of names that travel, with a plain value"
)
NEXT = "build it inside the function, or pass a value by Run(parameters={...})"
# What may stand in a block beside the assignments.
_HARMLESS = (ast.Import, ast.ImportFrom, ast.Pass, ast.Raise, ast.Delete, ast.Assert, ast.Expr)
_READS = frozenset({"open", "input", "getpass", "read_text", "read_bytes"})
_NOT_TWICE = re.compile(
    r"random\.(?!Random$|seed$).*|secrets\..*|uuid\.uuid[14]|os\.urandom"
    r"|time\.(?:time|monotonic|perf_counter)(?:_ns)?|datetime\.(?:datetime|date)\.(?:now|utcnow|today)"
    r"|numpy\.random\.(?!default_rng$|RandomState$|Generator$|SeedSequence$).*"
)


def faults_of(statement: Statement, name: str, live: Mapping[str, Any], *, is_newest: bool = True) -> list[str]:
    """Why the statement that binds the constant ``name`` cannot be executed again in a worker.

    Unless it is the newest that binds the name, ``live`` does not hold the value that it gave.
    """
    node = statement.node
    if what := _not_assigned(node):
        return [f"{statement.place()}: {name!r} is bound by {what}; {RULE}. Write one assignment, or {NEXT}"]
    alive = why_alive(live.get(name)) if is_newest and not _is_only_looked_up(node, live) else None
    if alive:
        return [f"{statement.place()}: {name!r} is {alive}, which exists only in this process; {RULE}. Next: {NEXT}"]
    return [f"{statement.place(line)}: {what}; {RULE}. Next: {NEXT}" for what, line in _calls(node, live)]


def expression_of(node: ast.stmt, name: str) -> ast.expr | None:
    """What the assignment gives to ``name``, also in ``a, b = 1, 2`` and in ``a += 1``."""
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        return ast.copy_location(ast.BinOp(ast.Name(name, ast.Load()), node.op, node.value), node)
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        return _part(node.target, node.value, name)
    if isinstance(node, ast.Assign):
        parts = (_part(target, node.value, name) for target in node.targets)
        return next((part for part in parts if part is not None), None)
    return None


def changed(statement: Statement, name: str, by: Statement | None) -> str:
    """The fault of a constant that is no longer what its statement gives; ``by``: the statement that changed it."""
    where = f"; it was changed in {by.place()}" if by else ""
    return (
        f"{statement.place()}: {name!r} is no longer what this statement gives{where}; only the "
        "statement travels. Write the final value in one assignment, or pass it by Run(parameters={...})"
    )


def changes(statement: Statement, name: str, *, by_method: bool) -> bool:
    """Whether the statement changes what ``name`` holds in place, as ``name.x = 1`` or ``name["x"] += 1``."""
    node = statement.node
    targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else [getattr(node, "target", None)]
    changed_in_place = (t for t in targets if isinstance(t, ast.Subscript | ast.Attribute) and root_of(t) == name)
    if any(not (isinstance(target, ast.Attribute) and target.attr in _LABELS) for target in changed_in_place):
        return True
    called = node.value.func if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None
    return by_method and isinstance(called, ast.Attribute) and root_of(called) == name and called.attr in _CHANGERS


_LABELS = frozenset(("__doc__", "__module__", "__name__", "__qualname__"))
_CHANGERS = frozenset(
    ("append", "extend", "insert", "pop", "remove", "clear", "sort", "reverse", "update", "setdefault", "add")
)


def changed_within(node: ast.AST) -> set[str]:
    """Names that functions below ``node`` may bind or change when they are called, as a counter or a cache."""
    found: set[str] = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.Global):
            found |= set(inner.names)
        elif isinstance(inner, ast.Subscript | ast.Attribute):
            is_changer = isinstance(inner, ast.Attribute) and inner.attr in _CHANGERS
            if (is_changer or not isinstance(inner.ctx, ast.Load)) and (root := root_of(inner)):
                found.add(root)
    return found


def always_binds(node: ast.stmt, name: str) -> bool:
    """Whether the statement binds ``name`` whichever way it goes; a block may leave an earlier value in place."""

    def any_of(body: list[ast.stmt]) -> bool:
        return any(always_binds(inner, name) or isinstance(inner, ast.Raise) for inner in body)

    if isinstance(node, ast.If):
        return any_of(node.body) and any_of(node.orelse)
    if isinstance(node, ast.Try):
        handlers = all(any_of(handler.body) for handler in node.handlers)
        return (any_of([*node.body, *node.orelse]) and handlers) or any_of(node.finalbody)
    if isinstance(node, ast.Match):
        is_complete = any(isinstance(case.pattern, ast.MatchAs) and not case.pattern.pattern for case in node.cases)
        return is_complete and all(any_of(case.body) for case in node.cases)
    if isinstance(node, ast.With | ast.For | ast.While):
        return False
    return name in binds(node)


def _part(target: ast.expr, value: ast.expr, name: str) -> ast.expr | None:
    """The expression that ``name`` is assigned, also in ``a, b = 1, 2``."""
    if isinstance(target, ast.Name) and target.id == name:
        return value
    if not isinstance(target, ast.Tuple | ast.List) or not isinstance(value, ast.Tuple | ast.List):
        return None
    if len(target.elts) != len(value.elts):
        return None
    parts = (_part(one, other, name) for one, other in zip(target.elts, value.elts, strict=True))
    return next((part for part in parts if part is not None), None)


def root_of(node: ast.expr) -> str | None:
    """The name that an attribute or an item is looked up on, as ``a`` in ``a.b[0].c``."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _not_assigned(node: ast.stmt) -> str | None:
    """What the statement is, when it is none that may be executed again; blocks may hold imports and definitions."""
    if isinstance(node, (*ASSIGNMENTS, *DEFINITIONS, *_HARMLESS)):
        return None
    if isinstance(node, ast.If | ast.Try | ast.Match) or _is_suppress(node):
        asks_name = isinstance(node, ast.If) and any(
            isinstance(inner, ast.Name) and inner.id == "__name__" for inner in ast.walk(node.test)
        )
        if asks_name:
            return "a block under `if __name__ == ...`, which is not executed in a worker"
        return next((what for inner in _blocks(node) if (what := _not_assigned(inner))), None)
    return f"a `{type(node).__name__.lower()}` statement"


def _blocks(node: ast.AST) -> Iterator[ast.stmt]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        elif isinstance(child, ast.ExceptHandler | ast.match_case):
            yield from _blocks(child)


def _is_suppress(node: ast.stmt) -> bool:
    return isinstance(node, ast.With) and all("suppress" in ast.unparse(item.context_expr) for item in node.items)


def _calls(node: ast.AST, live: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Calls that read something of this machine, or give another value each time."""
    for inner in _executed(node):
        if isinstance(inner, ast.Await):
            yield "waits for a coroutine", inner.lineno
        if not isinstance(inner, ast.Call):
            continue
        called = inner.func.attr if isinstance(inner.func, ast.Attribute) else getattr(inner.func, "id", "")
        full_name = _dotted(inner.func, live)
        if called in _READS:
            yield f"{called}(...) reads from this machine", inner.lineno
        elif full_name.startswith("train_func.client."):
            yield f"{called}(...) works only beside the notebook", inner.lineno
        elif _NOT_TWICE.fullmatch(full_name):
            yield f"{ast.unparse(inner.func)}(...) gives another value each time", inner.lineno


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run with the statement: not the bodies of functions."""
    waiting = [node]
    while waiting:
        one = waiting.pop()
        yield one
        if not isinstance(one, ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef):
            waiting.extend(ast.iter_child_nodes(one))


def _dotted(node: ast.expr, live: Mapping[str, Any]) -> str:
    """The full name of what is called, however it was imported."""
    attributes: list[str] = []
    while isinstance(node, ast.Attribute):
        attributes.insert(0, node.attr)
        node = node.value
    value = live.get(node.id) if isinstance(node, ast.Name) else None
    if isinstance(value, ModuleType):
        return ".".join([value.__name__, *attributes])
    owner = getattr(value, "__module__", None) or getattr(type(getattr(value, "__self__", None)), "__module__", "")
    return ".".join([str(owner), str(getattr(value, "__qualname__", "")), *attributes])


def _is_only_looked_up(node: ast.stmt, live: Mapping[str, Any]) -> bool:
    """Whether the value is a module's own, as in ``relu = torch.relu``: any process of that module has it."""
    value = getattr(node, "value", None)
    root = root_of(value) if isinstance(value, ast.Attribute) else None
    return root is not None and isinstance(live.get(root), ModuleType)
