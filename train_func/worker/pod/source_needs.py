"""What packed source says of the processes that run it: what the template imports before they run."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from train_func.packed import unfold

_OF_TRANSFORMERS = ("torch", "datasets", "accelerate", "transformers.trainer")
_OF_US = (*_OF_TRANSFORMERS, "train_func.worker.training.session", "train_func.worker.training.trainer")
# By the library that the source imports: what a training with it imports, each module after what it needs.
_IMPORTS = {
    "torch": ("torch",),
    "lightning": ("torch",),
    "accelerate": ("torch", "accelerate"),
    "transformers": _OF_TRANSFORMERS,
    "train_func": _OF_US,
}
_TORCH = _IMPORTS.keys() - {"train_func"}
_WRITES = frozenset({"update", "setdefault", "pop", "clear", "putenv", "unsetenv"})


@dataclass(frozen=True)
class SourceNeeds:
    """Of the function and the modules that travel with it."""

    libraries: frozenset[str] = frozenset()
    """What it imports, by the first part of the names."""
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
        return cls(
            libraries=frozenset(name.partition(".")[0] for node in nodes for name in _imported(node)),
            writes_environment=any(map(_writes_environment, nodes)),
        )

    @property
    def names_torch(self) -> bool:
        """Whether it imports torch, or what is used to train with it."""
        return not _TORCH.isdisjoint(self.libraries)

    @property
    def of_template(self) -> tuple[str, ...]:
        """The modules that a template imports for it, in their order; none where no template serves it."""
        if self.writes_environment:
            return ()
        wanted = {module for library, modules in _IMPORTS.items() if library in self.libraries for module in modules}
        return tuple(module for module in _OF_US if module in wanted)


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
