"""Whether this rank ever was in one process group with all the others: remembered when a group is made.

A rank may leave its group before it ends, and then torch knows nothing of it any more. Loads no torch: it waits until
train_func does.
"""

import importlib.abc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_MODULE = "torch.distributed.distributed_c10d"
_largest = [0]


def observe() -> None:
    """Remembers from now on every process group that this process makes with others."""
    sys.meta_path.insert(0, _Finder())


def separate(world_size: int) -> bool:
    """Whether this rank of several has imported torch and yet never was in one default group with all the others."""
    return "torch" in sys.modules and _largest[0] < world_size > 1


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
    """Every way to a default group, of whatever library, ends in this function of torch."""
    update = c10d._update_default_pg

    def remember(group: Any) -> None:
        update(group)
        if group is not None and group != c10d.GroupMember.NON_GROUP_MEMBER:
            _largest[0] = max(_largest[0], group.size())

    c10d._update_default_pg = remember
