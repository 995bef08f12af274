"""Credentials written into code: refused with their line, because the text goes to the store and the cluster."""

import ast
from collections.abc import Iterable, Iterator

from train_func.client.source.statements import Text
from train_func.secret import secret_in, secret_under


def secrets_in(tree: ast.AST, text: Text, first: int, last: int) -> Iterator[str]:
    """A fault for each line of ``text`` from ``first`` to ``last``, comments included, that holds a credential."""
    found: dict[int, str] = {}
    for number in range(first, last + 1):
        if what := secret_in(text.lines[number - 1]):
            found.setdefault(number, what)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and (what := secret_in(_text(node))) and not _is_within(node, found):
            found[node.lineno] = what
        for name, value in _named(node):
            if isinstance(value, ast.Constant) and (what := secret_under(name, _text(value))):
                found.setdefault(value.lineno, what)
    for line, what in sorted(found.items()):
        yield (
            f"{text.origin}, line {text.line + line - 1}: holds {what}; no credential may stand in code, which is "
            "stored and shown. Remove it there, and read it from the environment: a cluster sets it from a Secret"
        )


def _is_within(node: ast.Constant, lines: Iterable[int]) -> bool:
    return any(node.lineno <= line <= (node.end_lineno or node.lineno) for line in lines)


def _named(node: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """Every name with the value it is given: assigned, passed by keyword, as a default, or under a key."""
    match node:
        case ast.Assign():
            yield from ((_name(target), node.value) for target in node.targets)
        case ast.AnnAssign() | ast.NamedExpr():
            yield _name(node.target), node.value
        case ast.keyword():
            yield node.arg or "", node.value
        case ast.Dict():
            yield from ((_name(key), value) for key, value in zip(node.keys, node.values, strict=True))
        case ast.arguments():
            positional = [*node.posonlyargs, *node.args][len(node.posonlyargs) + len(node.args) - len(node.defaults) :]
            yield from ((a.arg, value) for a, value in zip(positional, node.defaults, strict=True))
            yield from ((a.arg, value) for a, value in zip(node.kwonlyargs, node.kw_defaults, strict=True))


def _name(target: ast.expr | None) -> str:
    match target:
        case ast.Name():
            return target.id
        case ast.Attribute():
            return target.attr
        case ast.Subscript():
            return _name(target.slice)
        case ast.Constant(value=str()):
            return str(target.value)
        case _:
            return ""


def _text(constant: ast.Constant) -> str:
    value = constant.value
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value if isinstance(value, str) else ""
