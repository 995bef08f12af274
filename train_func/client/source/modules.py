"""The modules that code imports: installed ones stay imports, local ones travel whole, missing ones are refused."""

import ast
import contextlib
import importlib.util
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FunctionType

from train_func.client.source.cells import Space, Statement, Text, absolute, is_installed
from train_func.client.source.names import Definition, Import, binds, catches

NEVER_PACKED = frozenset({"train_func", "__main__", "__future__"})  # train_func is installed in the worker
_PLAIN = (
    *(ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.UnaryOp, ast.BinOp, ast.Call, ast.keyword),
    *(ast.operator, ast.unaryop, ast.expr_context),
)
_PURE = {
    builtin.__name__: builtin
    for builtin in (bool, int, float, str, list, tuple, dict, set, frozenset, len, min, max, sum)
}
_CAUGHT = frozenset({"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})


@dataclass(frozen=True)
class LocalModule:
    """A module whose text is here; the origin of ``text`` is its path below the folder that it is imported from."""

    name: str
    is_package: bool
    text: Text

    @property
    def package(self) -> str:
        """Returns the package that relative imports in it refer to."""
        return self.name if self.is_package else self.name.rpartition(".")[0]

    @property
    def space(self) -> Space:
        """Returns its text and values; no values if it is not imported."""
        live = sys.modules.get(self.name)
        names = vars(live) if live else {"__name__": self.name}
        space = Space(names, [self.text], getattr(live, "__file__", None))
        space.package = self.package
        return space

    def constants(self) -> Iterator[tuple[Statement, str, object]]:
        """Yields the values that an import of the module computes from literals alone: last statement, name, value."""
        space = self.space
        names: dict[str, object] = {}
        for statement in space.statements:
            node = statement.node
            bound = binds(node, space.flags)
            if isinstance(node, ast.AnnAssign) and node.value:
                node = ast.copy_location(ast.Assign([node.target], node.value), node)
            try:
                parts = (part for part in ast.walk(node) if part is not node)
                if not isinstance(node, ast.Assign | ast.AugAssign) or not all(_is_plain(it, names) for it in parts):
                    raise ValueError
                exec(compile(ast.Module([node], []), "<constants>", "exec"), {"__builtins__": _PURE}, names)
            except Exception:  # what it binds depends on more than this text
                for name in bound & names.keys():
                    del names[name]
        yield from ((space.binders[name][-1], name, value) for name, value in names.items() if name in space.binders)

    def replaced(self) -> Iterator[str]:
        """Yields functions, classes and methods that were replaced by objects from elsewhere."""
        if self.space.is_loaded_from_file:
            last = {it.name: it.node for it in self.space.statements if self.space.binders[it.name][-1:] == [it]}
            yield from self._replaced(last.values(), self.space.live, "")

    def _replaced(self, nodes: Iterable[ast.stmt], live: Mapping[str, object], path: str) -> Iterator[str]:
        for node in nodes:
            value = live.get(node.name) if isinstance(node, Definition) else None
            if not isinstance(node, Definition) or value is None:
                continue
            written, is_code = (self.name, path + node.name), isinstance(value, FunctionType | type)
            is_same = (getattr(value, "__module__", None), getattr(value, "__qualname__", None)) == written
            if not is_same and not node.decorator_list and (is_code or not path):  # what metaclasses make of methods
                yield path + node.name
            elif isinstance(node, ast.ClassDef) and isinstance(value, type):
                last = {definition.name: definition for definition in node.body if isinstance(definition, Definition)}
                yield from self._replaced(last.values(), vars(value), f"{path}{node.name}.")


class Modules:
    """Collects the modules of all import statements of the packed code."""

    def __init__(self, function_module: str, is_there: Callable[[str], bool]) -> None:
        """``is_there``: returns whether a module that is not here is installed in the worker."""
        self.local: dict[str, LocalModule] = {}
        self.installed: dict[str, str] = {}  # top-level names that the code cannot do without, and where each stands
        self.faults: list[str] = []
        self.of_own: list[tuple[str, Text, int]] = []  # names that code imports of it, or *, each with its line
        self._own = function_module
        self._is_there = is_there

    def add(self, tree: ast.AST, text: Text, package: str = "", *, is_module: bool = False) -> None:
        """Follows every import below ``tree`` of ``text``; relative imports start from ``package``.

        ``is_module``: whether ``tree`` is a whole module, whose functions may never be called.
        """
        for node, is_certain in _imports_in(tree, is_certain=True, is_module=is_module):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self._import(alias.name, text.place(node.lineno), is_certain=is_certain)
            elif base := absolute(node, package):
                self._import(base, text.place(node.lineno), is_certain=is_certain)
                for alias in node.names:  # each a module, or a name in one
                    if base == self._own:
                        self.of_own.append((alias.name, text, node.lineno))
                    self._import(f"{base}.{alias.name}", text.place(node.lineno), is_certain=False)

    def _import(self, name: str, place: str, *, is_certain: bool) -> None:
        """``is_certain``: whether the code cannot do without the module."""
        top, *rest = name.split(".")
        spec = None
        if top not in NEVER_PACKED:
            with contextlib.suppress(ValueError, ImportError):  # a module without a spec, made in memory
                spec = importlib.util.find_spec(top)
        folders = list(spec.submodule_search_locations or ()) if spec else []
        if spec and spec.origin is None and not any(_holds_python(folder, rest) for folder in folders):
            spec = None  # any folder of that name
        if spec and not all(map(is_installed, [spec.origin] if spec.origin else folders)):
            self._embed(spec, rest, place, is_certain=is_certain)
        elif is_certain and (spec or top == "train_func" or (top not in NEVER_PACKED and self._is_there(top))):
            self.installed.setdefault(top, place)
        elif is_certain and top not in NEVER_PACKED:
            self.faults.append(_missing(top, place))

    def _embed(self, spec: ModuleSpec, rest: list[str], place: str, *, is_certain: bool) -> None:
        """Adds a local module, and then the next part of the dotted name below it."""
        name, folders = spec.name, spec.submodule_search_locations
        if name not in self.local and name != self._own:
            is_package = folders is not None
            path = name.replace(".", "/") + ("/__init__.py" if is_package else ".py")
            try:
                text = Text.of_file(Path(spec.origin), path) if spec.origin else Text(path, "")
                tree = ast.parse(text.text)
            except (OSError, SyntaxError, ValueError) as error:
                self.faults.append(f"{place}: the local module {name!r} ({path}) cannot be read as Python: {error}")
            else:
                module = self.local[name] = LocalModule(name, is_package, text)
                self.add(tree, text, module.package, is_module=True)
        if rest and folders is not None:
            below = PathFinder.find_spec(f"{name}.{rest[0]}", list(folders))
            if below:
                self._embed(below, rest[1:], place, is_certain=is_certain)
            elif is_certain and f"{name}.{rest[0]}" not in sys.modules:
                self.faults.append(_missing(f"{name}.{rest[0]}", place))


def _is_plain(node: ast.AST, names: Container[str]) -> bool:
    """Returns whether the value of ``node`` depends only on the text and ``names``."""
    if isinstance(node, ast.Name):
        return isinstance(node.ctx, ast.Store) or node.id in names or node.id in _PURE
    return isinstance(node, _PLAIN)


def _imports_in(node: ast.AST, *, is_certain: bool, is_module: bool) -> Iterator[tuple[Import, bool]]:
    """Yields the import statements below ``node``, and whether the code cannot do without the module."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Import):
            yield child, is_certain
        elif isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            may_fail = isinstance(child, ast.Try) and any(catches(handler, _CAUGHT) for handler in child.handlers)
            is_lazy = is_module and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            is_suppressed = isinstance(child, ast.With) and any("suppress" in ast.unparse(item) for item in child.items)
            is_passed_by = may_fail or is_lazy or is_suppressed or isinstance(child, ast.If | ast.Match)
            yield from _imports_in(child, is_certain=is_certain and not is_passed_by, is_module=is_module)


def _holds_python(folder: str, rest: list[str]) -> bool:
    """Returns whether a folder without ``__init__.py`` has the module, or any module if ``rest`` is empty."""
    patterns = [rest[0], f"{rest[0]}.*"] if rest else ["*.py", "*/__init__.py"]
    return any(next(Path(folder).glob(pattern), None) for pattern in patterns)


def _missing(name: str, place: str) -> str:
    return (
        f"{place}: code imports {name!r}, which this interpreter does not have; a module that is installed here or "
        "whose .py file lies here can be imported. Install it, correct the name, let its package travel with "
        "Local(packages=[...]) or Cluster(packages=[...]), or catch ImportError if it may be missing"
    )
