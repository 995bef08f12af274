"""The rule for constants: which assignments of a cell may be executed again in every worker.

A constant travels as its statement. That statement must be an assignment to names, made of literals, operators and
calls of names that travel themselves; it may not read a file or ask a person, and must give the same value each time.
The value must be plain: texts, numbers, containers, dataclasses and objects of own classes made of those, functions,
classes, modules, types, patterns, paths, dates, loggers, arrays and tensors; anything else of an installed package is
built inside the function. The value must still be the one its statement gives.
"""

import ast
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

from train_func.client.source.alive import why_alive
from train_func.client.source.evaluation import NotHarmless, evaluate, same
from train_func.client.source.statements import DEFINITIONS, Statement
from train_func.secret import secret_under

ASSIGNMENTS: tuple[type[ast.stmt], ...] = (ast.Assign, ast.AnnAssign)
if hasattr(ast, "TypeAlias"):  # Python 3.12: type Name = ...
    ASSIGNMENTS += (ast.TypeAlias,)
RULE = (
    "the statement of a constant is executed again in every worker, so it may only be an assignment of literals, "
    "operators and calls of names that travel, with a plain value"
)
NEXT = "build it inside the function, or pass a value by Run(parameters={...})"
_READS = frozenset({"open", "input", "getpass", "read_text", "read_bytes"})
_NOT_TWICE = re.compile(
    r"random\.(?!Random$|seed$).*|secrets\..*|uuid\.uuid[14]|os\.urandom"
    r"|time\.(?:time|monotonic|perf_counter)(?:_ns)?|datetime\.(?:datetime|date)\.(?:now|utcnow|today)"
    r"|numpy\.random\.(?!default_rng$|RandomState$|Generator$|SeedSequence$).*"
)


def faults_of(statement: Statement, names: Iterable[str], live: Mapping[str, Any]) -> Iterator[str]:
    """Why the statement that binds the constants ``names`` cannot be executed again in a worker."""
    node = statement.node
    if what := _not_assigned(node):
        yield f"{statement.place()}: {_list(names)} is bound by {what}; {RULE}. Write one assignment, or {NEXT}"
        return
    alive = {} if _is_only_looked_up(node, live) else {name: why_alive(live.get(name)) for name in names}
    for name, what in alive.items():
        if what:
            yield f"{statement.place()}: {name!r} is {what}, which exists only in this process; {RULE}. Next: {NEXT}"
    if not any(alive.values()):
        yield from (f"{statement.place(line)}: {what}; {RULE}. Next: {NEXT}" for what, line in _calls(node, live))


def still_gives(statement: Statement, name: str, live: Mapping[str, Any]) -> bool | None:
    """Whether the assignment gives the value that ``name`` has now; None when that cannot be told harmlessly."""
    node = statement.node
    target = node.targets[-1] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None or not isinstance(target, ast.expr):
        return None
    expression = _part(target, node.value, name)
    if expression is None:
        return None
    try:
        return same(evaluate(expression, live), live[name])
    except NotHarmless:
        return None


def changed(statement: Statement, name: str, live: Mapping[str, Any], by: Statement | None) -> str:
    """The fault of a constant that is no longer what its statement gives; ``by``: the statement that changed it."""
    now = reprlib.repr(live[name])
    value = "a value that is not shown" if secret_under(name, now.strip("'\"")) else now
    where = f"; it was changed in {by.place()}" if by else ""
    return (
        f"{statement.place()}: {name!r} is no longer what this statement gives, it is {value} now{where}; only the "
        "statement travels. Write the final value in one assignment, or pass it by Run(parameters={...})"
    )


def changes(statement: Statement, name: str, *, by_method: bool) -> bool:
    """Whether the statement changes what ``name`` holds in place, as ``name.x = 1`` or ``name["x"] += 1``."""
    node = statement.node
    targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else [getattr(node, "target", None)]
    if any(isinstance(target, ast.Subscript | ast.Attribute) and _root(target) == name for target in targets):
        return True
    called = node.value.func if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None
    return by_method and isinstance(called, ast.Attribute) and _root(called) == name and called.attr in _CHANGERS


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
            if (is_changer or not isinstance(inner.ctx, ast.Load)) and (root := _root(inner)):
                found.add(root)
    return found


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


def _root(node: ast.expr) -> str | None:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _not_assigned(node: ast.stmt) -> str | None:
    """What the statement is, when it is none that may be executed again; blocks may hold imports and definitions."""
    if isinstance(node, (ast.Import, ast.ImportFrom, ast.Pass, ast.Raise, *DEFINITIONS, *ASSIGNMENTS)):
        return None
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return None
    if isinstance(node, ast.If | ast.Try | ast.Match) or _is_suppress(node):
        asks_name = isinstance(node, ast.If) and any(
            isinstance(inner, ast.Name) and inner.id == "__name__" for inner in ast.walk(node.test)
        )
        if asks_name:
            return "a block under `if __name__ == ...`, which is not executed in a worker"
        return next((what for inner in _blocks(node) if (what := _not_assigned(inner))), None)
    return f"a `{_words(node)}` statement"


def _blocks(node: ast.AST) -> Iterator[ast.stmt]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        elif isinstance(child, ast.ExceptHandler | ast.match_case):
            yield from _blocks(child)


def _is_suppress(node: ast.stmt) -> bool:
    return isinstance(node, ast.With) and all("suppress" in ast.unparse(item.context_expr) for item in node.items)


def _words(node: ast.stmt) -> str:
    return {"Expr": "bare expression", "AugAssign": "+="}.get(type(node).__name__, type(node).__name__.lower())


def _calls(node: ast.AST, live: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Calls that read something of this machine, or give another value each time."""
    for inner in _executed(node):
        if isinstance(inner, ast.Await):
            yield "waits for a coroutine", inner.lineno
        if not isinstance(inner, ast.Call):
            continue
        called = inner.func.attr if isinstance(inner.func, ast.Attribute) else getattr(inner.func, "id", "")
        if called in _READS:
            yield f"{called}(...) reads from this machine", inner.lineno
        elif _NOT_TWICE.fullmatch(_dotted(inner.func, live)):
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
    root = _root(value) if isinstance(value, ast.Attribute) else None
    return root is not None and isinstance(live.get(root), ModuleType)


def _list(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)
