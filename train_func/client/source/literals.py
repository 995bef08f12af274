"""Credentials written into code: refused with their line, because the text goes to the store and the cluster."""

import ast
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass

from train_func.client.source.cells import Text
from train_func.secret import secret_in, secret_pairs, secret_under


@dataclass(frozen=True)
class Secret:
    """A credential in a line of code; ``value`` is empty when only its line is known."""

    what: str
    place: str
    line: str
    value: str

    @property
    def fault(self) -> str:
        """Why that line cannot travel; never with the value."""
        return (
            f"{self.place}: holds {self.what}; no credential may stand in code, which is stored and shown. "
            "Remove it there, and read it from the environment: a cluster sets it from a Secret"
        )

    def hidden_from(self, fault: str) -> str:
        """Another fault, without the value and without its line."""
        fault = fault.replace(self.line, self.place)
        return fault.replace(self.value, "***") if self.value else fault


def secrets_in(tree: ast.AST, text: Text, first: int, last: int) -> list[Secret]:
    """The credentials in the lines of ``text`` from ``first`` to ``last``, comments included; one per line."""
    found: dict[int, tuple[str, str]] = {}
    for number in range(first, last + 1):
        if what := secret_in(text.lines[number - 1]):
            found.setdefault(number, (what, ""))
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and _said(node)]
    for node in constants:  # one in pieces, as 'a' 'b', stands in no single line
        lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        if (what := secret_in(_said(node))) and not any(line in found for line in lines):
            found[node.lineno] = what, _said(node)
    for name, given in (pair for node in ast.walk(tree) for pair in _named(node)):
        if isinstance(given, ast.Constant) and (what := secret_under(name, _said(given))):
            found.setdefault(given.lineno, (what, _said(given)))
    for line, told in _comments(text, first, last):
        for what, value in secret_pairs(told):
            found.setdefault(line, (what, value))
    for node in constants:
        for what, value in secret_pairs(_said(node)):
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            line = next((number for number in lines if value in text.lines[number - 1]), node.lineno)
            found.setdefault(line, (what, value))
    return [
        Secret(what, f"{text.origin}, line {text.line + line - 1}", text.place(line), value)
        for line, (what, value) in sorted(found.items())
    ]


def _comments(text: Text, first: int, last: int) -> Iterator[tuple[int, str]]:
    lines = text.lines[first - 1 : last]
    if not any(True for line in lines for _ in secret_pairs(line.partition("#")[2])):
        return  # tokens are slow, and lines many
    try:
        for token in tokenize.generate_tokens(iter([*lines, ""]).__next__):
            if token.type == tokenize.COMMENT:
                yield first + token.start[0] - 1, token.string
    except (tokenize.TokenError, SyntaxError):
        return  # another statement begins in the last line


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
            names = [one.arg for one in (*node.posonlyargs, *node.args)]
            yield from zip(names[len(names) - len(node.defaults) :], node.defaults, strict=True)
            yield from ((one.arg, value) for one, value in zip(node.kwonlyargs, node.kw_defaults, strict=True))


def _name(target: ast.expr | None) -> str:
    match target:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Constant(value=str(name)):
            return name
        case ast.Subscript():
            return _name(target.slice)
    return ""


def _said(constant: ast.Constant) -> str:
    value = constant.value
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value if isinstance(value, str) else ""
