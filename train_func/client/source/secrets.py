"""Credentials in the lines that travel, with the place of each and never with its value."""

import ast
from dataclasses import dataclass

from train_func.client.source.cells import Text
from train_func.secret import may_hold_secret, secret_in, secret_pairs


@dataclass(frozen=True)
class Secret:
    """A credential in a line of code; ``value`` is empty when only its line is known."""

    what: str
    place: str
    line: str
    value: str

    @property
    def fault(self) -> str:
        """Why that line cannot travel."""
        return (
            f"{self.place}: holds {self.what}; no credential may stand in code, which is stored and shown. "
            "Remove it there, and read it from the environment: a cluster sets it from a Secret"
        )

    def hidden_from(self, fault: str) -> str:
        """Another fault, without the value and without its line."""
        fault = fault.replace(self.line, self.place)
        return fault.replace(self.value, "***") if self.value else fault


def secrets_in(tree: ast.AST, text: Text, first: int, last: int) -> list[Secret]:
    """The credentials in the lines of ``text`` from ``first`` to ``last``, comments included; one per line.

    ``tree`` is the syntax tree of these lines: what a string holds of names and values is read as prose is.
    """
    hits: dict[int, tuple[str, str]] = {}
    for number in range(first, last + 1):
        line = text.lines[number - 1]
        if not may_hold_secret(line):
            continue
        if what := secret_in(line):
            hits[number] = what, ""
        for what, value in (*secret_pairs(line, is_code=True), *secret_pairs(line.partition("#")[2])):
            hits.setdefault(number, (what, value))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and may_hold_secret(node.value):
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            for what, value in secret_pairs(node.value):
                number = next((line for line in lines if value in text.lines[line - 1]), node.lineno)
                hits.setdefault(number, (what, value))
    return [
        Secret(what, text.place(number).partition(": `")[0], text.place(number), value)
        for number, (what, value) in sorted(hits.items())
    ]
