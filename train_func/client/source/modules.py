"""The modules that code imports: installed ones stay imports, local ones travel, missing ones are refused."""

import ast
import importlib.util
import io
import sys
import sysconfig
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from pathlib import Path

from train_func.client.source.statements import Text

NEVER_PACKED = frozenset({"train_func", "__main__", "__future__"})  # train_func is installed in the worker
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_STANDARD = tuple(Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "platstdlib"))
_CAUGHT = frozenset({"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})


def _imports_in(
    node: ast.AST, *, is_optional: bool = False, lazy_is_optional: bool = False
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """The import statements below ``node``, and whether code goes on, or may never come there, without that module.

    ``lazy_is_optional``: those inside functions count as optional.
    """
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, is_optional
        elif isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            is_lazy = lazy_is_optional and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            optional = is_optional or is_lazy or _may_be_passed_by(child)
            yield from _imports_in(child, is_optional=optional, lazy_is_optional=lazy_is_optional)


def _may_be_passed_by(node: ast.AST) -> bool:
    if isinstance(node, ast.Try):
        return any(
            handler.type is None or any(isinstance(n, ast.Name) and n.id in _CAUGHT for n in ast.walk(handler.type))
            for handler in node.handlers
        )
    if isinstance(node, ast.With):
        return any("suppress" in ast.unparse(item.context_expr) for item in node.items)
    return isinstance(node, ast.If | ast.Match)


def is_installed(file: str | None) -> bool:
    """Whether a module of that file comes with Python or with an installed package."""
    if file is None or file in {"built-in", "frozen"}:
        return True
    path = Path(file).resolve()
    if _INSTALLED & set(path.parts):
        return True
    return any(path.is_relative_to(folder) for folder in _STANDARD)


def read_text(path: Path) -> str:
    """A Python file's text with every line break as it is; its encoding as Python finds it, without a BOM."""
    data = path.read_bytes()
    start = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    encoding, _ = tokenize.detect_encoding(io.BytesIO(start).readline)
    return data.decode(encoding)


@dataclass(frozen=True)
class LocalModule:
    """A module whose text lies here; the origin of ``text`` is its path below the folder it is imported from."""

    name: str
    is_package: bool
    text: Text


class Modules:
    """Collects what all import statements of the packed code ask for."""

    def __init__(self, is_there: Callable[[str], bool]) -> None:
        """``is_there``: whether a top-level module that is not here is installed where the code runs."""
        self.local: dict[str, LocalModule] = {}
        self.installed: dict[str, str] = {}  # top-level names that the code cannot do without, and where each stands
        self._is_there = is_there
        self.faults: list[str] = []
        self._specs: dict[str, ModuleSpec | None] = {}

    def add(self, tree: ast.AST, text: Text, package: str = "", *, lazy_is_optional: bool = False) -> None:
        """Follow every import below ``tree``, which stands in ``text``; relative ones start from ``package``."""
        for imported, is_optional in _imports_in(tree, lazy_is_optional=lazy_is_optional):
            for name, is_certain in _asked(imported, package):
                self._want(name, is_certain and not is_optional, text, imported.lineno)
        for node in ast.walk(tree):
            if called := _by_call(node):
                self._want(called, False, text, getattr(node, "lineno", 1))

    def _want(self, name: str, is_certain: bool, text: Text, line: int) -> None:
        top, *rest = name.split(".")
        if top in NEVER_PACKED:
            if is_certain and top == "train_func":
                self._stays(top, text, line)
            return
        spec = self._spec(top)
        if spec is None or (spec.origin is None and not self._below(spec, rest)):
            if is_certain and self._is_there(top):
                self._stays(top, text, line)
            elif is_certain:
                self.faults.append(_missing(top, text.place(line)))
        elif not all(is_installed(place) for place in ([spec.origin] if spec.origin else _folders(spec))):
            self._embed_all(spec, rest, is_certain, text, line)
        elif is_certain:
            self._stays(top, text, line)

    def need(self, name: str, text: Text, line: int) -> bool:
        """Whether the module is a local one; of another one the code needs the package that it comes from."""
        if name not in self.local:
            self._want(name, False, text, line)
        if name not in self.local:
            self.installed.setdefault(name.partition(".")[0], text.place(line))
        return name in self.local

    def _stays(self, top: str, text: Text, line: int) -> None:
        self.installed.setdefault(top, text.place(line))

    def _spec(self, top: str) -> ModuleSpec | None:
        if top not in self._specs:
            try:
                self._specs[top] = importlib.util.find_spec(top)
            except (ValueError, ImportError):  # a module without a spec, made in memory
                self._specs[top] = None
        return self._specs[top]

    def _below(self, spec: ModuleSpec, rest: list[str]) -> bool:
        """Whether a folder without ``__init__.py`` holds Python: any folder of that name would do otherwise."""
        folders = [Path(folder) for folder in _folders(spec)]
        if rest:
            return any((folder / rest[0]).is_dir() or _file([str(folder)], rest[0]) for folder in folders)
        return any(next(folder.glob(found), None) for folder in folders for found in ("*.py", "*/__init__.py"))

    def _embed_all(self, spec: ModuleSpec, rest: list[str], is_certain: bool, text: Text, line: int) -> None:
        folders = _folders(spec)
        self._embed(spec.name, Path(spec.origin) if spec.origin else None, bool(folders), text.place(line))
        name = spec.name
        for part in rest:
            name = f"{name}.{part}"
            file = _file(folders, part)
            inside = [str(Path(folder, part)) for folder in folders if Path(folder, part).is_dir()]
            if file is None and not inside:
                if is_certain and name not in sys.modules:
                    self.faults.append(_missing(name, text.place(line)))
                return
            is_package = file is None or file.name == "__init__.py"
            self._embed(name, file, is_package, text.place(line))
            folders = inside if is_package else []

    def _embed(self, name: str, file: Path | None, is_package: bool, place: str) -> None:
        if name in self.local:
            return
        path = name.replace(".", "/") + ("/__init__.py" if is_package else ".py")
        if file is not None and file.suffix != ".py":
            self.faults.append(
                f"{place}: the local module {name!r} is compiled ({file.name}), and only Python text travels; "
                "install it in the worker's image, or import something written in Python"
            )
            return
        try:
            text = Text(path, read_text(file) if file else "")
            ast.parse(text.text)
        except (OSError, SyntaxError, ValueError) as error:
            self.faults.append(f"{place}: the local module {name!r} ({path}) cannot be read as Python: {error}")
            return
        self.local[name] = LocalModule(name, is_package, text)


def _asked(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[tuple[str, bool]]:
    """Dotted names a statement imports, and whether each surely is a module."""
    if isinstance(node, ast.Import):
        yield from ((alias.name, True) for alias in node.names)
        return
    base = node.module or ""
    if node.level:
        parents = package.split(".")[: len(package.split(".")) - node.level + 1]
        base = ".".join([*parents, *([base] if base else [])])
    if base:
        yield base, True
        yield from ((f"{base}.{alias.name}", False) for alias in node.names if alias.name != "*")


def _by_call(node: ast.AST) -> str:
    """The name in ``importlib.import_module("name")``; empty when it is no such call."""
    match node:
        case ast.Call(
            func=ast.Attribute(attr="import_module" | "__import__") | ast.Name(id="import_module" | "__import__"),
            args=[ast.Constant(value=str(name)), *_],
        ) if all(part.isidentifier() for part in name.split(".")):
            return name
    return ""


def _folders(spec: ModuleSpec) -> list[str]:
    return list(spec.submodule_search_locations or ())


def _file(folders: list[str], part: str) -> Path | None:
    for folder in folders:
        names = [f"{part}/__init__.py", f"{part}.py", *(part + suffix for suffix in EXTENSION_SUFFIXES)]
        for name in names:
            if Path(folder, name).is_file():
                return Path(folder, name)
    return None


def _missing(name: str, place: str) -> str:
    return (
        f"{place}: code imports {name!r}, which this interpreter does not have; a module that is installed here or "
        "whose .py file lies here can be imported. Install it, correct the name, let its package travel with "
        "Local(packages=[...]) or Cluster(packages=[...]), or catch ImportError if it may lack"
    )
