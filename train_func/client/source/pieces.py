"""Pieces: lines that travel together, with their values and needs; and the order of the pieces of a module."""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from train_func.client.source.cells import Statement, Text
from train_func.client.source.names import Import


@dataclass(eq=False)
class Expression:
    """The text that makes one object, with the expressions of the objects that it holds in between."""

    value: object
    parts: "list[str | Expression]"
    needs: "list[Piece]"
    at: tuple[Text, int]
    """The line that needs it first."""
    num_uses: int = 1
    piece: "Piece | None" = None
    """The piece that binds a name to the object, if several places share it."""

    def text(self, user: "Piece | None" = None) -> str:
        """Returns the expression, or the name that another piece than ``user`` binds to its object."""
        if self.piece not in (user, None):
            return self.piece.name
        return "".join(part if isinstance(part, str) else part.text() for part in self.parts)

    def needed(self, user: "Piece | None" = None) -> "Iterator[Piece]":
        """Returns the pieces that ``text`` looks up."""
        if self.piece not in (user, None):
            yield self.piece
            return
        yield from self.needs
        for part in self.parts:
            if isinstance(part, Expression):
                yield from part.needed()


@dataclass(eq=False)
class Piece:
    """Lines that travel together, with the pieces that they need when they run, and when a function of them is called.

    The lines are a statement with values in place of its expressions, or a value, between ``head`` and ``tail``.
    """

    text: Text
    line: int
    original: str
    """The statement in its cell or file."""
    head: str = ""
    tail: str = ""
    node: ast.stmt | None = None
    """The statement's node; None for a value."""
    statement: Statement | None = None
    values: dict[ast.expr | None, Expression] = field(default_factory=dict)
    """The values by the expression that they replace; the value of a name is under None."""
    name: str = ""
    """The name that it binds to a value."""
    is_last: bool = False
    """Whether it sets the value of a name again at the end."""
    source: str = ""
    """The lines, after ``write``."""
    names: "list[Piece]" = field(default_factory=list)
    """The pieces that it looks up when it runs, besides those of ``values``; ``now`` has both."""
    now: "list[Piece]" = field(default_factory=list)
    later: "list[Piece]" = field(default_factory=list)

    @property
    def is_indented(self) -> bool:
        """Returns whether the statement is in a block."""
        return not self.head and self.node is not None and self.statement is not None and self.statement.is_indented

    def write(self) -> None:
        """Sets its lines."""
        texts = {
            key: expression.text(expression.piece if self.is_last else self) for key, expression in self.values.items()
        }
        body = texts.pop(None, "")
        if self.node is not None and self.statement is not None:
            body = self.statement.with_values({key: text for key, text in texts.items() if key})
        self.source = f"{self.head}{body}{self.tail}"

    def link(self) -> None:
        """Sets the pieces that it needs when it runs, once it is known which objects have names."""
        values = self.values.values()
        needed = [other for each in values for other in each.needed(each.piece if self.is_last else self)]
        self.now = [piece for piece in dict.fromkeys([*self.names, *needed]) if piece is not self]

    def place(self) -> str:
        """Returns where it stands, for a message."""
        return self.text.place(self.line)


def closure(start: Iterable[Piece], *, is_now: bool = False) -> set[Piece]:
    """Returns the pieces and all pieces that they need; ``is_now``: only those needed to execute them."""
    pieces: set[Piece] = set()
    waiting = list(start)
    while waiting:
        piece = waiting.pop()
        if piece not in pieces:
            pieces.add(piece)
            waiting += piece.now if is_now else [*piece.now, *piece.later]
    return pieces


def sort_pieces(pieces: list[Piece], root: Piece) -> list[Piece]:
    """Returns each piece after the pieces that it needs; pieces of one cell keep their order.

    The order depends on the texts alone, and not on when cells were executed, so that the same cells make the same
    bytes. A cell comes before the cells that use it.
    """
    ranks: dict[Text, int] = {}  # the cells, each after those it leads to
    seen: set[Piece] = set()

    def visit(piece: Piece) -> None:
        if piece not in seen:
            seen.add(piece)
            for needed in (*piece.now, *piece.later):
                visit(needed)
            ranks.setdefault(piece.text, len(ranks))

    for piece in (root, *pieces):
        visit(piece)
    waiting = sorted(pieces, key=lambda p: (p.is_last, not isinstance(p.node, Import), ranks[p.text], p.line))
    needs = {piece: closure(piece.now, is_now=True) for piece in waiting}
    # What the code that a piece runs may use in turn, unless that waits for the piece.
    wants = {piece: {other for other in closure(piece.now) if piece not in needs[other]} for piece in waiting}
    result: list[Piece] = []
    while waiting:
        rest = {*waiting}
        ready = next((p for p in waiting if not (needs[p] | wants[p]) & rest - {p}), None)
        ready = ready or next((p for p in waiting if not needs[p] & rest - {p}), waiting[0])
        waiting.remove(ready)
        result.append(ready)
    return result
