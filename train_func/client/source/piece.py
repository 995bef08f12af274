"""Statements that travel together."""

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from train_func.client.source.statements import Definition, Statement, Text
from train_func.client.source.uses import Uses

ImportStatement = ast.Import | ast.ImportFrom


@dataclass(eq=False)
class Piece:
    """Statements that travel together, with the pieces they need when they run, and when a function of them is called.

    ``original`` is the statement in its cell or file, ``source`` what travels.
    """

    text: Text
    line: int
    source: str
    original: str
    uses: Uses = field(default_factory=Uses)
    node: ast.stmt | None = None
    statement: Statement | None = None
    is_import: bool = False
    is_indented: bool = False
    is_last: bool = False
    now: list["Piece"] = field(default_factory=list)
    later: list["Piece"] = field(default_factory=list)

    @classmethod
    def of(cls, statement: Statement) -> Self:
        """The statement as it is."""
        return cls(
            statement.text,
            statement.first,
            statement.source,
            statement.source,
            node=statement.node,
            statement=statement,
            is_import=isinstance(statement.node, ImportStatement),
            is_indented=statement.is_indented,
        )

    @property
    def is_definition(self) -> bool:
        """Whether it is a function or a class."""
        return isinstance(self.node, Definition)

    def place(self, line: int | None = None) -> str:
        """Where it stands, for a message."""
        return self.text.place(line or self.line)


def closure(start: Iterable[Piece]) -> set[Piece]:
    """The pieces, and all that they need."""
    found: set[Piece] = set()
    waiting = list(start)
    while waiting:
        piece = waiting.pop()
        if piece not in found:
            found.add(piece)
            waiting += [*piece.now, *piece.later]
    return found
