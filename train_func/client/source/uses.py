"""The global names a statement binds and looks up, read from its bytecode, so that scopes are the compiler's own."""

import ast
import dis
import inspect
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CodeType

from train_func.client.source.statements import Definition

_LOADS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_STORES = frozenset({"STORE_GLOBAL", "STORE_NAME"})
_LAZY = frozenset({"__annotate__"})  # annotations of Python 3.14, evaluated when they are asked for
_AT_ONCE = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<generic parameters of ")
_FORGIVING = frozenset({"NameError", "Exception", "BaseException"})

OF_A_MODULE = frozenset(
    (
        *("__name__", "__file__", "__doc__", "__package__", "__spec__", "__loader__", "__builtins__", "__path__"),
        *("__annotations__", "__conditional_annotations__", "__cached__", "__debug__", "__class__", "__classdict__"),
        *("__module__", "__qualname__"),
    )
)


@dataclass
class Uses:
    """Each name with the first line (within the text) that looks it up."""

    now: dict[str, int] = field(default_factory=dict)  # when the statement is executed
    later: dict[str, int] = field(default_factory=dict)  # when a function of it is called
    maybe: dict[str, int] = field(default_factory=dict)  # may be absent: guarded, or only in an annotation
    binds: set[str] = field(default_factory=set)  # at module level, by the statement or by a function with ``global``
    own: set[str] = field(default_factory=set)  # local names, to find what a typo meant


def binds(node: ast.stmt, flags: int = 0) -> frozenset[str]:
    """Names that executing the statement at module level binds there, without those of ``import *``."""
    if isinstance(node, Definition):
        return frozenset({node.name})
    if isinstance(node, ast.Import):
        return frozenset(alias.asname or alias.name.partition(".")[0] for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return frozenset(alias.asname or alias.name for alias in node.names if alias.name != "*")
    if isinstance(node, ast.Pass | ast.Assert | ast.Delete):
        return frozenset()
    return frozenset(uses_of(node, flags).binds)


def uses_of(node: ast.stmt, flags: int = 0) -> Uses:
    """What one statement, compiled as if it stood at module level, looks up and binds.

    ``flags``: the ``__future__`` features it was compiled with.
    """
    uses = Uses()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        code = compile(
            ast.Module([node], []), "<piece>", "exec", flags | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, True, optimize=0
        )
    _read(code, uses, at_once=True, is_module=True, forgiven=_forgiven_lines(node))
    for name, line in _annotations(node):
        uses.maybe.setdefault(name, line)
    for name in _asked_for(node):
        for certain in (uses.now, uses.later):
            if name in certain:
                uses.maybe.setdefault(name, certain.pop(name))
    return uses


def bound_in_class(node: ast.ClassDef) -> set[str]:
    """The names that the body of a class binds, as the class has them."""
    waiting = [compile(ast.Module([node], []), "<piece>", "exec", 0, True)]
    while waiting:
        code = waiting.pop(0)
        inner = [one for one in code.co_consts if isinstance(one, CodeType)]
        if code.co_name == node.name and not code.co_flags & inspect.CO_OPTIMIZED:
            return {step.argval for step in dis.get_instructions(code) if step.opname == "STORE_NAME"}
        waiting += inner
    return set()


def _read(code: CodeType, uses: Uses, *, at_once: bool, is_module: bool, forgiven: list[range]) -> None:
    bound: set[str] = set()
    line = code.co_firstlineno
    for step in dis.get_instructions(code):
        line = (step.positions and step.positions.lineno) or line
        if step.opname in _LOADS and step.argval not in bound:
            sure = uses.now if at_once else uses.later
            into = uses.maybe if any(line in lines for lines in forgiven) or code.co_name in _LAZY else sure
            into[step.argval] = min(line, into.get(step.argval, line))
        elif step.opname in _STORES:
            if step.opname == "STORE_NAME":
                bound.add(step.argval)
            if is_module or step.opname == "STORE_GLOBAL":
                uses.binds.add(step.argval)
    uses.own |= {*code.co_varnames, *code.co_cellvars, *bound}
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            _read(inner, uses, at_once=at_once and _runs_at_once(inner), is_module=False, forgiven=forgiven)


def _runs_at_once(code: CodeType) -> bool:
    is_class_body = not code.co_flags & inspect.CO_OPTIMIZED
    return is_class_body or code.co_name.startswith(_AT_ONCE)


def _forgiven_lines(node: ast.AST) -> list[range]:
    """Lines where a missing name is expected and caught, as in ``try: unicode / except NameError``."""
    return [
        range(inner.body[0].lineno, (inner.body[-1].end_lineno or 0) + 1)
        for inner in ast.walk(node)
        if isinstance(inner, ast.Try) and any(_catches(handler, _FORGIVING) for handler in inner.handlers)
    ]


def _catches(handler: ast.ExceptHandler, names: frozenset[str]) -> bool:
    if any(isinstance(inner, ast.Raise) for inner in ast.walk(handler)):
        return False
    return handler.type is None or any(
        isinstance(inner, ast.Name) and inner.id in names for inner in ast.walk(handler.type)
    )


def _annotations(node: ast.AST) -> Iterator[tuple[str, int]]:
    for inner in ast.walk(node):
        for owned in (getattr(inner, "annotation", None), getattr(inner, "returns", None)):
            if isinstance(owned, ast.expr):
                yield from ((name, owned.lineno) for name in _names(owned))


def _names(annotation: ast.AST) -> Iterator[str]:
    """Names of an annotation, those in quotes too."""
    for inner in ast.walk(annotation):
        if isinstance(inner, ast.Name):
            yield inner.id
        elif isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            try:
                yield from _names(ast.parse(inner.value.strip(), mode="eval"))
            except (SyntaxError, ValueError):
                continue  # a text that is no type, as in Literal["a b"]


def _asked_for(node: ast.AST) -> set[str]:
    """Names whose presence the code itself asks for, as in ``if "CONFIG" in globals()``."""
    if not any(isinstance(n, ast.Name) and n.id in {"globals", "locals", "vars", "dir"} for n in ast.walk(node)):
        return set()
    return {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
