"""Whether a function saves its state: it uses our Trainer, or calls ``checkpoint`` of a session."""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

_WORKER = "train_func.worker"

_Origins = Mapping[str, set[str]]


def saves_state(trees: Iterable[ast.AST]) -> bool:
    """Of what travels together: the pieces of the function, and local modules."""
    nodes = [node for tree in trees for node in ast.walk(tree)]
    origins = _imported(nodes)
    used = {path for node in nodes if isinstance(node, ast.Name | ast.Attribute) for path in _paths(node, origins)}
    ours = {path.rpartition(".")[2] for path in used if path.startswith(f"{_WORKER}.")}
    return "Trainer" in ours or ("Session" in ours and any(_is_checkpoint(node, origins) for node in nodes))


def _imported(nodes: Iterable[ast.AST]) -> _Origins:
    """By name: what imports have bound it to, such as ``train_func.worker.Trainer``."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                found[bound].add(alias.name if alias.asname else bound)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                found[alias.asname or alias.name].add(f"{node.module or ''}.{alias.name}")
    return found


def _paths(node: ast.expr, origins: _Origins) -> Iterator[str]:
    """What the expression names, when it begins with a name that is imported."""
    if isinstance(node, ast.Name):
        yield from origins.get(node.id, ())
    elif isinstance(node, ast.Attribute):
        yield from (f"{path}.{node.attr}" for path in _paths(node.value, origins))


def _is_checkpoint(node: ast.AST, origins: _Origins) -> bool:
    """Whether it calls that of an object; one of a module is another, as ``torch.utils.checkpoint.checkpoint``."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "checkpoint"):
        return False
    return not any(_paths(node.func.value, origins))
