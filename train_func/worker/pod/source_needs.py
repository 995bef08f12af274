"""What packed source says of the processes that run it: whether the template's imports serve it, and may come first."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from train_func.packed import unfold

_TORCH = frozenset({"torch", "transformers", "accelerate", "lightning"})
_WRITES = frozenset({"update", "setdefault", "pop", "clear", "putenv", "unsetenv"})


@dataclass(frozen=True)
class SourceNeeds:
    """Of the function and the modules that travel with it."""

    names_torch: bool = False
    """Whether it imports torch, or what is used to train with it."""
    names_us: bool = False
    """Whether it imports this package."""
    writes_environment: bool = False
    """Whether it may set variables, which libraries read when they are imported."""

    @classmethod
    def of(cls, source: Path) -> Self:
        """Nothing where it cannot be read: the rank says what is wrong with it."""
        try:
            text = source.read_text()
            trees = [ast.parse(part) for part in (text, *(module.text for module, _ in unfold(text).modules))]
        except (OSError, SyntaxError, ValueError):
            return cls()
        nodes = [node for tree in trees for node in ast.walk(tree)]
        names = {name.partition(".")[0] for node in nodes for name in _imported(node)}
        return cls(
            names_torch=not _TORCH.isdisjoint(names),
            names_us="train_func" in names,
            writes_environment=any(map(_writes_environment, nodes)),
        )

    @property
    def template_serves(self) -> bool:
        """Whether a process that has imported torch and this package before it runs as one that has not."""
        return (self.names_torch or self.names_us) and not self.writes_environment


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    if isinstance(node, ast.ImportFrom) and node.module:
        yield node.module


def _writes_environment(node: ast.AST) -> bool:
    match node:
        case ast.Subscript(value=value, ctx=ast.Store() | ast.Del()):
            return _is_environment(value)
        case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in _WRITES:
            return _is_environment(value) or name in ("putenv", "unsetenv")
        case ast.AugAssign(target=target):
            return _is_environment(target)
    return False


def _is_environment(node: ast.AST) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr == "environ") or (
        isinstance(node, ast.Name) and node.id == "environ"
    )
