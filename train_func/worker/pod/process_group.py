"""The process groups that this rank makes: each is noted when torch registers it, and kept until the process ends.

Noted, because a rank may leave its group before it ends, and then torch knows nothing of it any more. Kept, because
the destructor of a gloo group waits for its threads while it holds the interpreter's lock, and a thread that frees a
tensor waits for that lock: a DDP model that goes out of scope after destroy_process_group() hangs its rank
(https://github.com/pytorch/pytorch/issues/56297). Loads no torch: unless the template has, it waits until train_func
does.
"""

import importlib.abc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_MODULE = "torch.distributed.distributed_c10d"
_groups: list[Any] = []


def observe() -> None:
    """Notes and keeps from now on every process group that this process makes."""
    if loaded := sys.modules.get(_MODULE):
        _listen(loaded)
    else:
        sys.meta_path.insert(0, _Finder())


def separate(world_size: int, *, has_torch: bool) -> bool:
    """Whether this rank of several has torch and yet never was in one group with all the others."""
    return has_torch and max((group.size() for group in _groups), default=0) < world_size > 1


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing by itself: it only learns when torch's module is loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _MODULE:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _listen(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _listen(c10d: Any) -> None:
    """Every group, of whatever library, goes through this function of torch."""
    register = c10d._register_process_group

    def keep(name: Any, group: Any) -> None:
        _groups.append(group)
        register(name, group)

    c10d._register_process_group = keep
