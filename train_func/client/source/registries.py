"""Registries: what definitions fill while they are made, as the decorator ``@register`` does."""

import ast

from train_func.client.source.changes import changed_within, empty_of, root_of
from train_func.client.source.part import Part
from train_func.client.source.piece import Piece, closure
from train_func.client.source.statements import Definition
from train_func.client.source.values import NoValueError, is_own_object


def settle_registries(part: Part) -> None:
    """What definitions fill while they are made, as a decorator does a registry, gets its value when all are."""
    reached = closure([one for piece in part.pieces if piece.is_definition for one in piece.now])
    changed = {name for piece in reached if piece.is_definition and piece.node for name in changed_within(piece.node)}
    decorators = [one for piece in reached if isinstance(piece.node, Definition) for one in piece.node.decorator_list]
    roots = {root_of(one.func if isinstance(one, ast.Call) else one) for one in decorators}
    changed |= {name for name in roots if name and is_own_object(part.space.live.get(name))}
    for name in sorted(changed & part.values.keys()):
        piece = part.values[name]
        expression = piece.source.removeprefix(f"{name} = ").removesuffix("\n")
        value = part.space.live[name]
        fill = next((one for one in ("update", "extend") if hasattr(value, one) and hasattr(value, "clear")), None)
        is_own = is_own_object(value) and not isinstance(value, dict | list)
        empty = part.write(empty_of(value), piece.text, piece.line, is_named=True) if fill or is_own else None
        filled = f"{name} = {expression}\n"
        if empty is not None and not isinstance(empty, NoValueError):
            filled = f"{name}.clear()\n{name}.{fill}({expression})\n"
            if is_own:
                filled = f"{name}.__dict__.update({expression}.__dict__)\n"
        part.pieces.append(Piece(piece.text, piece.line, filled, piece.original, is_last=True, now=[*piece.now]))
        if empty is not None and not isinstance(empty, NoValueError):
            piece.source, piece.now = f"{name} = {empty[0]}\n", empty[1]
