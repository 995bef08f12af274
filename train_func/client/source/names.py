"""The names that a statement binds and looks up, read from its bytecode, so that scopes are the compiler's own."""

import ast
import dis
import inspect
import warnings
from dataclasses import dataclass, field
from types import CodeType

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Import = ast.Import | ast.ImportFrom
OF_A_MODULE = frozenset(
    (
        *("__name__", "__file__", "__doc__", "__package__", "__spec__", "__loader__", "__builtins__", "__path__"),
        *("__annotations__", "__conditional_annotations__", "__cached__", "__debug__", "__class__", "__classdict__"),
        *("__module__", "__qualname__"),
    )
)

_LOADS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_AT_ONCE = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<generic parameters of ")
_FORGIVING = frozenset({"NameError", "Exception", "BaseException"})


@dataclass
class Uses:
    """Each name with the first line (within the text) that looks it up."""

    now: dict[str, int] = field(default_factory=dict)  # when the statement is executed
    later: dict[str, int] = field(default_factory=dict)  # when a function of it is called
    maybe: dict[str, int] = field(default_factory=dict)  # may be absent, because its NameError is caught
    hints: dict[str, int] = field(default_factory=dict)  # in an annotation, which nothing may ever evaluate
    binds: set[str] = field(default_factory=set)  # at module level, by the statement or by a function with ``global``
    local_names: set[str] = field(default_factory=set)  # to find what a typo meant


def binds(node: ast.stmt, flags: int = 0) -> set[str]:
    """Returns the names that the statement binds at module level, without those of ``import *``."""
    if isinstance(node, Definition):
        return {node.name}
    if isinstance(node, Import):
        return {alias.asname or alias.name.partition(".")[0] for alias in node.names} - {"*"}
    return uses_of(node, flags).binds


def uses_of(node: ast.stmt, flags: int = 0) -> Uses:
    """Returns the names that a statement looks up and binds, compiled at module level under ``flags``."""
    uses = Uses()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        code = compile(ast.Module([node], []), "<piece>", "exec", flags, True, optimize=0)
    nodes = [*ast.walk(node)]
    guarded = {
        line
        for block in nodes
        if isinstance(block, ast.Try) and any(catches(handler, _FORGIVING) for handler in block.handlers)
        for line in range(block.body[0].lineno, (block.body[-1].end_lineno or 0) + 1)
    }
    _read(code, uses, at_once=True, is_module=True, guarded=guarded)
    annotations = [getattr(node, name, None) for node in nodes for name in ("annotation", "returns")]
    for name in (inner for each in annotations if each for inner in ast.walk(each) if isinstance(inner, ast.Name)):
        uses.hints.setdefault(name.id, name.lineno)
    return uses


def catches(handler: ast.ExceptHandler, names: frozenset[str]) -> bool:
    """Returns whether code goes on after the handler has caught one of these errors."""
    if any(isinstance(inner, ast.Raise) for inner in ast.walk(handler)):
        return False
    return handler.type is None or any(isinstance(n, ast.Name) and n.id in names for n in ast.walk(handler.type))


def _read(code: CodeType, uses: Uses, *, at_once: bool, is_module: bool, guarded: set[int]) -> None:
    bound: set[str] = set()
    line = code.co_firstlineno
    for step in dis.get_instructions(code):
        line = (step.positions and step.positions.lineno) or line
        if step.opname in _LOADS and step.argval not in bound:
            certain = uses.now if at_once else uses.later
            into = uses.maybe if line in guarded else certain
            if code.co_name == "__annotate__":  # annotations of Python 3.14, evaluated when they are asked for
                into = uses.hints
            into[step.argval] = min(line, into.get(step.argval, line))
        elif step.opname in ("STORE_GLOBAL", "STORE_NAME"):
            if step.opname == "STORE_NAME":
                bound.add(step.argval)
            if is_module or step.opname == "STORE_GLOBAL":
                uses.binds.add(step.argval)
    uses.local_names |= {*code.co_varnames, *code.co_cellvars, *bound}
    for inner in (constant for constant in code.co_consts if isinstance(constant, CodeType)):
        runs = not inner.co_flags & inspect.CO_OPTIMIZED or inner.co_name.startswith(_AT_ONCE)  # the body of a class
        _read(inner, uses, at_once=at_once and runs, is_module=False, guarded=guarded)
