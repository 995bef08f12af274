"""The modules that code imports: installed ones stay imports, local ones travel whole, missing ones are refused."""

import ast
import importlib.util
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from pathlib import Path

from train_func.client.source.cells import Space, Text, absolute
from train_func.client.source.names import Import, catches

NEVER_PACKED = frozenset({"train_func", "__main__", "__future__"})  # train_func is installed in the worker
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_STANDARD = tuple(Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "platstdlib"))
_CAUGHT = frozenset({"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})


def is_installed(file: str | None) -> bool:
    """Whether a module of that file comes with Python or with an installed package."""
    if file is None or file in {"built-in", "frozen"}:
        return True
    path = Path(file).resolve()
    return bool(_INSTALLED & set(path.parts)) or any(path.is_relative_to(folder) for folder in _STANDARD)


@dataclass(frozen=True)
class LocalModule:
    """A module whose text lies here; the origin of ``text`` is its path below the folder it is imported from."""

    name: str
    is_package: bool
    text: Text

    @property
    def package(self) -> str:
        """What relative imports in it refer to."""
        return self.name if self.is_package else self.name.rpartition(".")[0]

    @property
    def space(self) -> Space:
        """What its names hold; nothing when it was not imported yet."""
        live = sys.modules.get(self.name)
        names = vars(live) if live else {"__name__": self.name}
        space = Space(names, [self.text], getattr(live, "__file__", None))
        space.package = self.package
        return space


class Modules:
    """Collects what all import statements of the packed code ask for."""

    def __init__(self, own: str, is_there: Callable[[str], bool]) -> None:
        """``own``: the function's module; ``is_there``: whether one that is not here is installed in the worker."""
        self.local: dict[str, LocalModule] = {}
        self.installed: dict[str, str] = {}  # top-level names that the code cannot do without, and where each stands
        self.faults: list[str] = []
        self._own = own
        self._is_there = is_there
        self._specs: dict[str, ModuleSpec | None] = {}

    def add(self, tree: ast.AST, text: Text, package: str = "", *, is_module: bool = False) -> None:
        """Follows every import below ``tree`` of ``text``; relative ones start from ``package``.

        ``is_module``: of a whole module, in which a function may never be called.
        """
        for imported, is_optional in _imports_in(tree, is_optional=False, is_module=is_module):
            if isinstance(imported, ast.Import):
                names = [(alias.name, not is_optional) for alias in imported.names]
            else:
                base = absolute(imported, package)
                names = [(base, not is_optional)] if base else []
                names += [(f"{base}.{alias.name}", False) for alias in imported.names if base and alias.name != "*"]
            for name, is_certain in names:
                self._want(name, is_certain, text, imported.lineno)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and (called := _module_of(node)):
                self._want(called, False, text, node.lineno)

    def _want(self, name: str, is_certain: bool, text: Text, line: int) -> None:
        top, *rest = name.split(".")
        if top in NEVER_PACKED:
            if is_certain and top == "train_func":
                self.installed.setdefault(top, text.place(line))
            return
        if top not in self._specs:
            try:
                self._specs[top] = importlib.util.find_spec(top)
            except (ValueError, ImportError):  # a module without a spec, made in memory
                self._specs[top] = None
        spec = self._specs[top]
        if spec is None or (spec.origin is None and not _holds_python(spec, rest)):
            if is_certain and not self._is_there(top):
                self.faults.append(_missing(top, text.place(line)))
            elif is_certain:
                self.installed.setdefault(top, text.place(line))
        elif not all(is_installed(place) for place in ([spec.origin] if spec.origin else _folders(spec))):
            self._embed_all(spec, rest, is_certain, text, line)
        elif is_certain:
            self.installed.setdefault(top, text.place(line))

    def _embed_all(self, spec: ModuleSpec, rest: list[str], is_certain: bool, text: Text, line: int) -> None:
        name, folders = spec.name, _folders(spec)
        self._embed(name, Path(spec.origin) if spec.origin else None, bool(folders), text.place(line))
        for part in rest:
            name = f"{name}.{part}"
            suffixes = ("/__init__.py", ".py", *EXTENSION_SUFFIXES)
            files = (Path(folder, part + suffix) for folder in folders for suffix in suffixes)
            file = next((one for one in files if one.is_file()), None)
            inside = [str(Path(folder, part)) for folder in folders if Path(folder, part).is_dir()]
            if file is None and not inside:
                if is_certain and name not in sys.modules:
                    self.faults.append(_missing(name, text.place(line)))
                return
            is_package = file is None or file.name == "__init__.py"
            self._embed(name, file, is_package, text.place(line))
            folders = inside if is_package else []

    def _embed(self, name: str, file: Path | None, is_package: bool, place: str) -> None:
        if name in self.local or name == self._own:
            return
        path = name.replace(".", "/") + ("/__init__.py" if is_package else ".py")
        if file is not None and file.suffix != ".py":
            self.faults.append(
                f"{place}: the local module {name!r} is compiled ({file.name}), and only Python text travels; "
                "install it in the worker's image, or import something written in Python"
            )
            return
        try:
            text = Text.of_file(file, path) if file else Text(path, "")
            tree = ast.parse(text.text)
        except (OSError, SyntaxError, ValueError) as error:
            self.faults.append(f"{place}: the local module {name!r} ({path}) cannot be read as Python: {error}")
            return
        module = self.local[name] = LocalModule(name, is_package, text)
        self.add(tree, text, module.package, is_module=True)


def _imports_in(node: ast.AST, *, is_optional: bool, is_module: bool) -> Iterator[tuple[Import, bool]]:
    """The import statements below ``node``, and whether code goes on, or may never come there, without that module."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Import):
            yield child, is_optional
        elif isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            may_fail = isinstance(child, ast.Try) and any(catches(one, _CAUGHT) for one in child.handlers)
            is_lazy = is_module and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            is_suppressed = isinstance(child, ast.With) and any("suppress" in ast.unparse(one) for one in child.items)
            is_passed_by = may_fail or is_lazy or is_suppressed or isinstance(child, ast.If | ast.Match)
            yield from _imports_in(child, is_optional=is_optional or is_passed_by, is_module=is_module)


def _module_of(call: ast.Call) -> str:
    """The name in ``importlib.import_module("name")``; empty when it is no such call."""
    match call:
        case ast.Call(
            func=ast.Attribute(attr="import_module" | "__import__") | ast.Name(id="import_module" | "__import__"),
            args=[ast.Constant(value=str(name)), *_],
        ) if all(part.isidentifier() for part in name.split(".")):
            return name
    return ""


def _holds_python(spec: ModuleSpec, rest: list[str]) -> bool:
    """Whether a folder without ``__init__.py`` holds Python: any folder of that name would do otherwise."""
    patterns = [rest[0], f"{rest[0]}.*"] if rest else ["*.py", "*/__init__.py"]
    return any(next(Path(folder).glob(pattern), None) for folder in _folders(spec) for pattern in patterns)


def _folders(spec: ModuleSpec) -> list[str]:
    return list(spec.submodule_search_locations or ())


def _missing(name: str, place: str) -> str:
    return (
        f"{place}: code imports {name!r}, which this interpreter does not have; a module that is installed here or "
        "whose .py file lies here can be imported. Install it, correct the name, let its package travel with "
        "Local(packages=[...]) or Cluster(packages=[...]), or catch ImportError if it may lack"
    )
