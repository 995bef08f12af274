"""Checks from the text of a function that each worker trains on its own part of a plan.

A worker finds the same fault, but only after it has loaded its libraries. The check follows names that the function
binds outside of branches and loops, and ignores all others.
"""

import ast
import re
from collections.abc import Container, Iterable, Iterator

from train_func.client.source.cells import Statement

CALL = "split_dataset_by_node({session}.plan(rows), {session}.rank, {session}.world_size)"
_PLANS = re.compile(r"\.plan\b")


def plan_fault(statement: Statement, packed: str, of_worker: Container[str], workers: int) -> str:
    """Returns the fault of a plan that is passed whole or split twice, or of rows that are no plan; empty if none.

    Args:
        statement: the function.
        packed: all text that travels.
        of_worker: the names that it imports from ``train_func.worker``.
        workers: number of workers of the run; a single worker has all of a plan.
    """
    nodes = [*ast.walk(statement.node)]
    sessions = [
        node.optional_vars.id
        for node in nodes
        if isinstance(node, ast.withitem)
        and isinstance(node.optional_vars, ast.Name)
        and getattr(getattr(node.context_expr, "func", None), "id", "") == "Session"
    ]
    if len(sessions) != 1 or "Session" not in of_worker or not isinstance(statement.node, ast.FunctionDef):
        return ""
    session = sessions[0]
    owners = {node.value for node in nodes if isinstance(node, ast.Attribute)}
    is_handed_on = any(
        isinstance(node, ast.Name) and node.id == session and node not in owners and isinstance(node.ctx, ast.Load)
        for node in nodes
    )
    call = CALL.format(session=session)
    has_plan = bool(_PLANS.search(packed))
    for taker, line, num_splits in _uses(statement.node.body, session, {}):
        if taker == "Trainer" and taker not in of_worker:  # another one
            continue
        if not has_plan and not is_handed_on:
            why = "rows that are no plan"
        elif workers > 1 and num_splits in (0, 2):
            why = "the plan split twice" if num_splits else "all of the plan on every worker"
        else:
            continue
        return f"{statement.place(line)}: {taker} is given {why}; a plan of which each worker has its part is {call}"
    return ""


def _uses(
    body: Iterable[ast.stmt], session: str, splits: dict[str, int | None]
) -> Iterator[tuple[str, int, int | None]]:
    """Yields the taker of a plan, its line, and how often the plan was split; None if that is not known.

    ``splits``: how often the plan in a name was split, by name.
    """
    for part in body:
        heads = [child for child in ast.iter_child_nodes(part) if not isinstance(child, ast.stmt)]
        for node in (node for head in heads for node in ast.walk(head)):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="steps"), args=[plan]) if (
                    name == session
                ):
                    yield f"{session}.steps", node.lineno, _num_splits(plan, session, splits)
                case ast.Call(func=ast.Name(id="Trainer"), keywords=words):
                    for plan in (word.value for word in words if word.arg == "train_dataset"):
                        yield "Trainer", node.lineno, _num_splits(plan, session, splits)
        match part:
            case ast.With():
                yield from _uses(part.body, session, splits)
            case ast.Assign(targets=[ast.Name(id=name)]):
                splits[name] = _num_splits(part.value, session, splits)
            case _:
                bound = [
                    node for node in ast.walk(part) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
                ]
                splits.update(dict.fromkeys(name.id for name in bound))


def _num_splits(node: ast.expr, session: str, splits: dict[str, int | None]) -> int | None:
    match node:
        case ast.Name(id=name):
            return splits.get(name)
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="plan")) if name == session:
            return 0
        case ast.Call(func=ast.Name(id="split_dataset_by_node"), args=[rows, *_]):
            number = _num_splits(rows, session, splits)
            return None if number is None else number + 1
    return None
