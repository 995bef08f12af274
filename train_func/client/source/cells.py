"""The text of the user's code, cell by cell or as one file, and the current values of its names."""

import __future__

import ast
import inspect
import io
import linecache
import sys
import sysconfig
import tokenize
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from train_func.client.source.names import Definition, Import, binds
from train_func.wire.source_file import split_lines

MAX_SHOWN = 80  # characters of a line inside a message
ABSENT = object()
ATOMS = (type(None), bool, int, float, str, bytes)
_STANDARD = tuple(Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "platstdlib"))


@dataclass(frozen=True, eq=False)
class Text:
    """One executed cell, or one file. ``order``: position in the execution; ``line``: number of its first line."""

    origin: str
    text: str
    order: int = 0
    line: int = 1

    @classmethod
    def of_file(cls, path: Path, origin: str) -> "Text":
        """Reads a file in the encoding that Python detects, without a BOM; line breaks do not change."""
        data = path.read_bytes()
        start = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return cls(origin, data.decode(tokenize.detect_encoding(io.BytesIO(start).readline)[0]))

    @cached_property
    def lines(self) -> list[str]:
        """Returns the lines as Python counts them, each with its line break."""
        return split_lines(self.text)

    @cached_property
    def tree(self) -> ast.Module:
        """Returns the syntax tree; empty if the text is not Python, such as a cell that the interpreter refused."""
        try:
            return parse(self.text)
        except (SyntaxError, ValueError):
            return ast.Module([], [])

    @cached_property
    def statements(self) -> list["Statement"]:
        """Returns the statements at the top level."""
        return [Statement(self, node) for node in self.tree.body]

    @cached_property
    def definitions(self) -> dict[tuple[str, int], "Statement"]:
        """Returns every ``def`` and ``class``, at any depth, by the name and first line of its code object."""
        statements = [Statement(self, node) for node in ast.walk(self.tree) if isinstance(node, Definition)]
        return {(statement.name, statement.first): statement for statement in statements}

    @cached_property
    def outer(self) -> list["Statement"]:
        """Returns the definitions that bind a name of the module, also those in a block."""
        nodes = [statement.node for statement in self.definitions.values()]
        inner = {inner for node in nodes for inner in ast.walk(node) if inner is not node}
        return [statement for statement in self.definitions.values() if statement.node not in inner]

    def place(self, line: int) -> str:
        """Returns the place of a line and its text, for a message."""
        shown = self.lines[line - 1].strip() if line <= len(self.lines) else ""
        shown = shown if len(shown) <= MAX_SHOWN else shown[:MAX_SHOWN] + "..."
        return f"{self.origin}, line {self.line + line - 1}: `{shown}`"


@dataclass(frozen=True, eq=False)
class Statement:
    """One statement of a text."""

    text: Text
    node: ast.stmt

    @property
    def name(self) -> str:
        """Returns the name of a definition; empty for other statements."""
        return self.node.name if isinstance(self.node, Definition) else ""

    @property
    def decorators(self) -> list[ast.expr]:
        """Returns the decorators of a definition."""
        return self.node.decorator_list if isinstance(self.node, Definition) else []

    @property
    def first(self) -> int:
        """Returns its first line within the text, including decorators."""
        return min([self.node.lineno, *(decorator.lineno for decorator in self.decorators)])

    @property
    def last(self) -> int:
        """Returns its last line within the text."""
        return self.node.end_lineno or self.node.lineno

    @property
    def is_indented(self) -> bool:
        """Returns whether it is inside a block."""
        return self.text.lines[self.first - 1][:1] in {" ", "\t"} and self.node.col_offset > 0

    @cached_property
    def source(self) -> str:
        """Returns its whole lines; if it shares a line with another statement, only its own characters."""
        return self.with_values({})

    def with_values(self, texts: Mapping[ast.expr, str]) -> str:
        """Returns the source with other expressions in the same lines."""
        lines = self.text.lines[self.first - 1 : self.last]
        is_alone = isinstance(self.node, Definition)
        if not is_alone:
            lines[-1] = lines[-1].encode()[: self.node.end_col_offset].decode()
        if not lines[-1].endswith(("\r", "\n")):
            lines[-1] += "\n"
        head = lines[0].encode()[: self.node.col_offset].decode()
        for node in sorted(texts, key=lambda node: (node.lineno, node.col_offset), reverse=True):
            first, last = node.lineno - self.first, (node.end_lineno or node.lineno) - self.first
            before = lines[first].encode()[: node.col_offset].decode()
            after = lines[last].encode()[node.end_col_offset :].decode()
            breaks = "".join(line[len(line.rstrip("\r\n")) :] for line in lines[first:last])
            text = f"({texts[node]}{breaks})" if breaks else texts[node]
            lines[first : last + 1] = split_lines(before + text + after)
        return "".join(lines) if is_alone else "".join(lines).removeprefix(head)

    def place(self, line: int | None = None) -> str:
        """Returns where it stands, for a message."""
        return self.text.place(line or self.first)

    def comes_after(self, other: "Statement") -> bool:
        """Returns whether it was executed after ``other``."""
        return (self.text.order, self.first) > (other.text.order, other.first)


class Space:
    """A notebook (its cells in the order of their execution) or one file, and the current values of its names."""

    def __init__(self, live: Mapping[str, Any], texts: list[Text], file: str | None = None) -> None:
        self.live = live
        self.texts = texts
        self.file = file
        self.package: str = (live.get("__package__") or "") if file else ""

    @classmethod
    def of(cls, live: Mapping[str, Any], file: str | None) -> "Space | None":
        """Returns the space of the globals ``live`` of a ``file`` or a notebook; None if there is no text."""
        if isinstance(live.get("_ih"), list) and "get_ipython" in live:
            cells = []
            for number, text in enumerate(live["_ih"]):
                cell = Text(f"cell In[{number}]", text, order=number)
                if number and text:
                    cells.append(cell)
                    if body := _magic_body(cell):
                        cells.append(Text(cell.origin, body, order=number, line=2))
            return cls(live, cells)
        if file is None or not Path(file).is_file():
            return None
        path = Path(file).resolve()
        shown = str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else path.name
        return cls(live, [Text.of_file(path, shown)], file)

    def is_ipython_s(self, name: str) -> bool:
        """Returns whether IPython itself has bound ``name``, as it does ``open``."""
        shell = None if self.file else self.live["get_ipython"]()
        return shell is not None and shell.user_ns_hidden.get(name, ABSENT) is self.live[name]

    @cached_property
    def statements(self) -> list[Statement]:
        """Returns all statements at the top level, in the order of their execution."""
        return [statement for text in self.texts for statement in text.statements]

    @cached_property
    def futures(self) -> list[str]:
        """Returns the names that are imported from ``__future__``."""
        nodes = [statement.node for statement in self.statements if isinstance(statement.node, ast.ImportFrom)]
        return sorted({alias.name for node in nodes if node.module == "__future__" for alias in node.names})

    @cached_property
    def flags(self) -> int:
        """Returns the compiler flags of ``futures``."""
        return sum(getattr(__future__, name).compiler_flag for name in self.futures)

    @cached_property
    def binders(self) -> Mapping[str, list[Statement]]:
        """Returns the statements that bind each name, by name."""
        binders: dict[str, list[Statement]] = defaultdict(list)
        for statement in self.statements:
            for name in binds(statement.node, self.flags) | {*self._star(statement.node)}:
                binders[name].append(statement)
        return binders

    def _star(self, node: ast.stmt) -> Mapping[str, object]:
        """Returns the names that ``import *`` binds; empty for another statement."""
        if not isinstance(node, ast.ImportFrom) or node.names[0].name != "*":
            return {}
        names = getattr(sys.modules.get(absolute(node, self.package)), "__dict__", {})
        return {name: names.get(name) for name in public_names(names)}

    def binder(self, name: str) -> Statement | None:
        """Returns the newest statement that binds ``name``; an ``import *`` only if the name still holds its value."""
        for statement in reversed(self.binders.get(name, ())):
            names = self._star(statement.node)
            if name not in names or names[name] is self.live.get(name, ABSENT):
                return statement
        return None

    def imports_of(self, name: str, binder: Statement) -> list[Statement]:
        """Returns the import that binds ``name``, or all of ``import a.b`` and ``import a.c``, the newest of a text."""
        if not isinstance(binder.node, ast.Import):
            return [binder]
        imports = [statement for statement in self.binders[name] if isinstance(statement.node, ast.Import)]
        return [*{statement.source: statement for statement in imports}.values()]

    def text_of(self, code: CodeType) -> Text | None:
        """Returns the cell or file that ``code`` was compiled from; of equal cells the last executed one."""
        if self.file:
            return self.texts[0] if code.co_filename == self.file else None
        content = "".join(linecache.getlines(code.co_filename)).rstrip("\n")
        is_timed = code.co_filename == "<timed exec>"  # what a cell under %%time is compiled as
        for text in reversed(self.texts):
            if _key(code) in text.definitions if is_timed else content and text.text.rstrip("\n") == content:
                return text
        return None

    def definition_at(self, code: CodeType) -> Statement | None:
        """Returns the ``def`` that ``code`` was compiled from, at any depth."""
        text = self.text_of(code)
        return text.definitions.get(_key(code)) if text else None

    def definition_of(self, value: object) -> Statement | None:
        """Returns the statement that defines a function or a class of this space, also a decorated one."""
        functions = [self.definition_at(code) for code in self._codes(value)]
        if isinstance(value, type) and value.__module__ == self.live.get("__name__"):
            outer = [statement for text in self.texts for statement in text.outer]
            classes = [it for it in outer if isinstance(it.node, ast.ClassDef) and it.name == value.__qualname__]
            methods = {function.node for function in functions if function}
            around = [statement for statement in classes if not methods.isdisjoint(ast.walk(statement.node))]
            return next(reversed(around or classes), None)
        for depth, statement in enumerate(functions):
            if statement and statement.node in {outer.node for outer in statement.text.outer}:
                is_plain = depth == 0 and isinstance(value, FunctionType | staticmethod)
                return statement if is_plain or statement.decorators else None
        return None

    @property
    def is_loaded_from_file(self) -> bool:
        """Returns whether Python's own loader has executed the text; other loaders may change code."""
        return bool(self.file) and type(self.live.get("__loader__")) is SourceFileLoader

    def is_outdated(self, value: object) -> bool:
        """Returns whether the file no longer has the code of a function or a class of it; a cell never changes."""
        if not self.is_loaded_from_file:
            return False
        return any(_without_lines(code) not in self._code_of_file for code in self._codes(value))

    def is_moved(self, value: object) -> bool:
        """Returns whether the file has other definitions in the lines of a function or a class."""
        codes = self._codes(value) if self.file else ()
        return any(self.definition_at(code) is None for code in codes if code.co_name != "<lambda>")

    @cached_property
    def _code_of_file(self) -> set[CodeType]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            waiting, codes = [compile(self.texts[0].tree, "<file>", "exec", dont_inherit=True)], set[CodeType]()
        while waiting:
            inner = _inner(waiting.pop())
            codes |= {_without_lines(nested) for nested in inner}
            waiting += inner
        return codes

    def _codes(self, value: object) -> Iterator[CodeType]:
        """Yields the code objects from this space: of a function, or of the methods of a class."""
        for member in list(vars(value).values()) if isinstance(value, type) else [value]:
            for function in layers(member):
                is_own = not isinstance(value, type) or function.__qualname__.startswith(value.__qualname__ + ".")
                if function.__globals__ is self.live and is_own and function.__code__.co_filename != "<string>":
                    yield function.__code__

    def lambda_of(self, code: CodeType) -> tuple[Text, ast.Lambda] | None:
        """Returns the expression that a lambda was compiled from, or an equal one in its line."""
        text = self.text_of(code)
        for node in ast.walk(text.tree) if text else ():
            if isinstance(node, ast.Lambda) and node.lineno == code.co_firstlineno:
                compiled = compile(ast.Expression(node), "<lambda>", "eval", self.flags, dont_inherit=True)
                if _without_lines(code) in map(_without_lines, _inner(compiled)):
                    assert text
                    return text, node
        return None

    def registrations(self, name: str, statement: Statement) -> list[Statement]:
        """Returns later definitions with a decorator of ``name``, as ``@name.register``; the newest of each text."""
        newest: dict[str, Statement] = {}
        for later in self.statements:
            called = [getattr(decorator, "func", decorator) for decorator in later.decorators]
            owners = [attribute.value for attribute in called if isinstance(attribute, ast.Attribute)]
            if later.comes_after(statement) and any(isinstance(it, ast.Name) and it.id == name for it in owners):
                newest[later.source] = later
        return list(newest.values())

    def is_import_of(self, node: ast.stmt, name: str) -> bool:
        """Returns whether the value of ``name`` may come from the import; any function and any class may."""
        if not isinstance(node, Import):
            return False
        value = self.live[name]
        if isinstance(node, ast.Import) or isinstance(value, ModuleType | type | FunctionType):
            return isinstance(value, ModuleType) or isinstance(node, ast.ImportFrom)
        home = sys.modules.get(absolute(node, self.package))
        is_given = any(
            getattr(home, name if alias.name == "*" else alias.name, ABSENT) is value for alias in node.names
        )
        return is_given and is_installed(getattr(home, "__file__", None))  # a local one may compute it again


def public_names(names: Mapping[str, Any]) -> list[str]:
    """Returns the names that ``import *`` binds from a module."""
    return [*names.get("__all__", [name for name in names if not name.startswith("_")])]


def is_installed(file: str | None) -> bool:
    """Returns whether a module of that file comes with Python or with an installed package."""
    if file is None or file in {"built-in", "frozen"}:
        return True
    path = Path(file).resolve()
    is_of_package = not {"site-packages", "dist-packages"}.isdisjoint(path.parts)
    return is_of_package or any(path.is_relative_to(folder) for folder in _STANDARD)


def absolute(node: ast.ImportFrom, package: str) -> str:
    """Returns the full name of the module that ``node`` imports from, in a module of ``package``."""
    parents = package.split(".")
    parents = parents[: len(parents) + 1 - node.level] if node.level else []
    return ".".join([*parents, *([node.module] if node.module else [])])


def parse(text: str) -> ast.Module:
    """Returns the syntax tree, with ``await`` allowed at the top level as in a cell, and without warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = compile(text, "<cell>", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    assert isinstance(tree, ast.Module)
    return tree


def literal(node: ast.expr) -> object:
    """Returns the value of a literal, else ABSENT."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return ABSENT


def layers(value: object) -> Iterator[FunctionType]:
    """Yields the function itself, then the functions that its decorators wrap; calls no ``__getattr__``."""
    for _ in range(100):
        if isinstance(value, FunctionType):
            yield value
        if isinstance(value, property):
            value = value.fget
        elif isinstance(value, staticmethod | classmethod):
            value = value.__func__
        else:
            value = inspect.getattr_static(value, "__wrapped__", None)


def is_same_literal(value: object, other: object) -> bool:
    """Returns whether two values have one type, and equal bits."""
    return type(value) is type(other) and repr(value) == repr(other)


def _magic_body(cell: Text) -> str | None:
    """Returns the code below ``%%time`` or another cell magic."""
    if "run_cell_magic(" not in cell.text or len(cell.tree.body) != 1:
        return None
    match cell.tree.body[0]:
        case ast.Expr(value=ast.Call(args=[ast.Constant("time" | "capture"), *_, ast.Constant(str(body))])):
            return body
    return None


def _key(code: CodeType) -> tuple[str, int]:
    return code.co_name, code.co_firstlineno


def _inner(code: CodeType) -> list[CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]


def _without_lines(code: CodeType) -> CodeType:
    """Returns the code without its lines and file, so that functions with the same text are equal."""
    within = (_without_lines(constant) if isinstance(constant, CodeType) else constant for constant in code.co_consts)
    flags = code.co_flags & ~inspect.CO_NESTED
    bare = code.replace(co_filename="", co_firstlineno=0, co_linetable=b"", co_consts=tuple(within), co_flags=flags)
    return bare.replace(co_qualname="")
