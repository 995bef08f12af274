"""Waits for the import of a module that this process may need later, or never. Loads nothing itself."""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


def on_import(name: str, act: Callable[[ModuleType], object]) -> Callable[[], None]:
    """Calls ``act`` with the module: at once if it is imported already, else right behind its import.

    Returns what ends the waiting.
    """
    if module := sys.modules.get(name):
        act(module)
        return lambda: None
    finder = _Finder(name, act)
    sys.meta_path.insert(0, finder)

    def end() -> None:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)

    return end


class _Finder(MetaPathFinder):
    """Finds the moment at which the module is loaded."""

    def __init__(self, name: str, act: Callable[[ModuleType], object]) -> None:
        self._name, self._act = name, act

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name == self._name else None
        if spec and spec.loader:
            execute = spec.loader.exec_module

            def execute_and_act(module: ModuleType) -> None:
                execute(module)
                self._act(module)

            spec.loader.exec_module = execute_and_act  # type: ignore[method-assign]
        return spec
