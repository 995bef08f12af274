"""The lines that travel together, what they need, and the order in which a module has them."""

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from train_func.client.source.cells import Statement, Text
from train_func.client.source.names import Import, Uses


@dataclass(eq=False)
class Piece:
    """Lines that travel together, with the pieces they need when they run, and when a function of them is called."""

    text: Text
    line: int
    write: Callable[[], str]
    """Gives the lines that travel; ``original`` is the statement in its cell or file."""
    original: str
    node: ast.stmt | None = None
    """None for a value."""
    statement: Statement | None = None
    is_last: bool = False
    source: str = ""
    uses: Uses = field(default_factory=Uses)
    now: list["Piece"] = field(default_factory=list)
    later: list["Piece"] = field(default_factory=list)

    @property
    def is_import(self) -> bool:
        """Whether it stands above everything else."""
        return isinstance(self.node, Import)

    def place(self, line: int | None = None) -> str:
        """Where it stands, for a message."""
        return self.text.place(line or self.line)


def closure(start: Iterable[Piece], *, is_now: bool = False) -> set[Piece]:
    """The pieces, and all that they need; ``is_now``: to be executed."""
    found: set[Piece] = set()
    waiting = list(start)
    while waiting:
        piece = waiting.pop()
        if piece not in found:
            found.add(piece)
            waiting += piece.now if is_now else [*piece.now, *piece.later]
    return found


def ordered(pieces: list[Piece], root: Piece) -> Iterator[Piece]:
    """Each piece after what it needs; those of one cell keep their order, and cells come before those that use them.

    The order depends on the texts alone and not on when cells were executed, so that the same cells give the same
    bytes. Only where two pieces need each other's functions does the order of execution decide.
    """
    ranks: dict[Text, int] = {}  # the cells, each after those it leads to
    seen: set[Piece] = set()
    stack = [(piece, False) for piece in [*reversed(pieces), root]]
    while stack:
        piece, is_left = stack.pop()
        if is_left:
            ranks.setdefault(piece.text, len(ranks))
        elif piece not in seen:
            seen.add(piece)
            stack.append((piece, True))
            stack.extend((inner, False) for inner in reversed([*piece.now, *piece.later]))
    waiting = sorted(pieces, key=lambda p: (p.is_last, not p.is_import, ranks[p.text], p.line))
    needs = {piece: closure(piece.now, is_now=True) for piece in waiting}
    wants = {piece: {one for one in closure(piece.now) if piece not in needs[one]} for piece in waiting}
    while waiting:
        rest = {*waiting}
        ready = next((p for p in waiting if not (needs[p] | wants[p]) & rest - {p}), None)
        if ready is None:  # two need each other
            tied = [p for p in waiting if not needs[p] & rest - {p}] or waiting
            ready = min(tied, key=lambda p: (p.text.order, p.line))
        waiting.remove(ready)
        yield ready
