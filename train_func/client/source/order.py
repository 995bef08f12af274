"""The order of the pieces: each after what it needs, otherwise as they were written.

It depends on the texts alone and not on when cells were executed, so that the same cells give the same bytes. Only
where two pieces need each other's functions does the order of execution decide.
"""

from collections.abc import Callable, Mapping

from train_func.client.source.piece import Piece
from train_func.client.source.statements import Definition, Text


def ordered(pieces: list[Piece], root: Piece | None) -> list[Piece]:
    """All pieces; those of one cell keep their lines' order, and cells come before the cells that use them."""
    ranks = _ranks(root, pieces)
    waiting = sorted(pieces, key=lambda p: (p.is_last, not p.is_import, ranks[p.text], p.line))
    needs = {piece: _closure(piece.now, lambda p: p.now) for piece in pieces}
    wants = {piece: _wants(piece, needs) for piece in pieces}
    done: list[Piece] = []
    while waiting:
        after = set(waiting)
        ready = next((p for p in waiting if not (needs[p] | wants[p]) & after - {p}), None)
        if ready is None:
            tied = [p for p in waiting if not needs[p] & after - {p}] or waiting
            ready = min(tied, key=lambda p: (p.text.order, p.line))
        waiting.remove(ready)
        done.append(ready)
    return done


def order_namesakes(pieces: list[Piece], of_name: Mapping[str, list[Piece]]) -> None:
    """Lets a definition whose name holds something newer come before that, with the other names that it has."""
    for piece in pieces:
        name = piece.node.name if isinstance(piece.node, Definition) else ""
        newer = of_name.get(name, [])
        if piece in newer:
            continue
        others = [one for one in pieces if piece in one.now and one.source.endswith(f" = {name}\n")]
        for one in newer:
            one.now += [piece, *others]


def _ranks(root: Piece | None, pieces: list[Piece]) -> dict[Text, int]:
    """The cells, each after those it leads to; walked without recursion, for chains of any length."""
    ranks: dict[Text, int] = {}
    seen: set[Piece] = set()
    stack = [(piece, False) for piece in [*reversed(pieces), *([root] if root else [])]]
    while stack:
        piece, is_left = stack.pop()
        if is_left:
            ranks.setdefault(piece.text, len(ranks))
        elif piece not in seen:
            seen.add(piece)
            stack.append((piece, True))
            stack.extend((inner, False) for inner in reversed([*piece.now, *piece.later]))
    return ranks


def _wants(piece: Piece, needs: dict[Piece, set[Piece]]) -> set[Piece]:
    """What a function called by the statement may use, unless that itself needs the statement."""
    wanted = _closure(piece.now, lambda p: [*p.now, *p.later])
    return {one for one in wanted if piece not in needs[one]}


def _closure(start: list[Piece], following: Callable[[Piece], list[Piece]]) -> set[Piece]:
    found: set[Piece] = set()
    waiting = list(start)
    while waiting:
        piece = waiting.pop()
        if piece not in found:
            found.add(piece)
            waiting.extend(following(piece))
    return found
