"""Credentials written into code: refused with their line, because the text goes to the store and the cluster."""

import ast
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from train_func.client.source.statements import Text
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
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and (what := secret_in(_text(node))) and not _is_within(node, found):
            found[node.lineno] = what, _text(node)
        for name, value in _named(node):
            if isinstance(value, ast.Constant) and (what := secret_under(name, _text(value))):
                found.setdefault(value.lineno, (what, _text(value)))
    for number, what, told in [*_told_in_comments(text, first, last), *_told_in_literals(tree, text)]:
        found.setdefault(number, (what, told))
    return [
        Secret(what, f"{text.origin}, line {text.line + line - 1}", text.place(line), value)
        for line, (what, value) in sorted(found.items())
    ]


def _told_in_comments(text: Text, first: int, last: int) -> Iterator[tuple[int, str, str]]:
    """Line, kind and value of every credential that a comment names; `#` in a literal begins none."""
    lines = text.lines[first - 1 : last]
    if not any(True for line in lines for _ in secret_pairs(line.partition("#")[2])):
        return  # tokens are slow, and lines many
    try:
        for token in tokenize.generate_tokens(iter([*lines, ""]).__next__):
            if token.type == tokenize.COMMENT:
                yield from ((first + token.start[0] - 1, *pair) for pair in secret_pairs(token.string))
    except (tokenize.TokenError, SyntaxError):
        return  # another statement begins in the last line


def _told_in_literals(tree: ast.AST, text: Text) -> Iterator[tuple[int, str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            for what, value in secret_pairs(_text(node)):
                numbers = range(node.lineno, (node.end_lineno or node.lineno) + 1)
                yield next((n for n in numbers if value in text.lines[n - 1]), node.lineno), what, value


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
