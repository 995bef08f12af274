"""What a person wrote, cell by cell or as one file, to the character, and what its names hold now."""

import __future__

import ast
import inspect
import io
import linecache
import re
import sys
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

from train_func.client.source.names import Definition, Import, binds, root_of
from train_func.source_file import split_lines

MAX_SHOWN = 80  # characters of a line inside a message
ABSENT = object()
_NOTHING_AFTER = re.compile(r"[ \t\f]*;?[ \t\f]*(?:#[^\r\n]*)?(?:\r\n|\r|\n)?")
_TIMED = "<timed exec>"  # what a cell under %%time is compiled as


@dataclass(frozen=True, eq=False)
class Text:
    """One executed cell, or one file. ``order``: when it was executed; ``line``: of its first line in the origin."""

    origin: str
    text: str
    order: int = 0
    line: int = 1

    @classmethod
    def of_file(cls, path: Path, origin: str) -> "Text":
        """Every line break as it is; the encoding as Python finds it, without a BOM."""
        data = path.read_bytes()
        start = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return cls(origin, data.decode(tokenize.detect_encoding(io.BytesIO(start).readline)[0]))

    @cached_property
    def lines(self) -> list[str]:
        """As Python counts them, each with its line break."""
        return split_lines(self.text)

    @cached_property
    def tree(self) -> ast.Module:
        """Empty when the text is not Python, as a cell that the interpreter refused."""
        try:
            return parse(self.text)
        except (SyntaxError, ValueError):
            return ast.Module([], [])

    @cached_property
    def statements(self) -> list["Statement"]:
        """Those at the top level."""
        return [Statement(self, node) for node in self.tree.body]

    @cached_property
    def definitions(self) -> dict[tuple[str, int], "Statement"]:
        """Every ``def`` and ``class``, at any depth, by its name and first line, as a code object knows it."""
        known = {id(statement.node): statement for statement in self.statements}
        nodes = [node for node in ast.walk(self.tree) if isinstance(node, Definition)]
        statements = [known.get(id(node)) or Statement(self, node) for node in nodes]
        return {(node.name, one.first): one for node, one in zip(nodes, statements, strict=True)}

    @cached_property
    def outer(self) -> list["Statement"]:
        """Those definitions that bind a name of the module, also in a block."""
        found = self.definitions.values()
        inner = {id(node) for one in found for node in ast.walk(one.node) if node is not one.node}
        return [one for one in found if id(one.node) not in inner]

    def place(self, line: int) -> str:
        """Where a line of this text stands, and what it says, for a message."""
        shown = self.lines[line - 1].strip() if line <= len(self.lines) else ""
        shown = shown if len(shown) <= MAX_SHOWN else shown[:MAX_SHOWN] + "..."
        return f"{self.origin}, line {self.line + line - 1}: `{shown}`"


@dataclass(frozen=True, eq=False)
class Statement:
    """One statement of a text."""

    text: Text
    node: ast.stmt

    @property
    def first(self) -> int:
        """Its first line within the text, decorators included."""
        decorators = self.node.decorator_list if isinstance(self.node, Definition) else []
        return min([self.node.lineno, *(decorator.lineno for decorator in decorators)])

    @property
    def last(self) -> int:
        """Its last line within the text."""
        return self.node.end_lineno or self.node.lineno

    @property
    def is_indented(self) -> bool:
        """Whether it stands inside a block."""
        return self.text.lines[self.first - 1][:1] in {" ", "\t"} and self.node.col_offset > 0

    @cached_property
    def source(self) -> str:
        """Its whole lines; only where it shares a line with another statement, its own characters."""
        return self.with_values({})

    def with_values(self, texts: Mapping[ast.expr, str]) -> str:
        """The source with other expressions in the same lines."""
        lines = self.text.lines[self.first - 1 : self.last]
        tail = from_byte(lines[-1], self.node.end_col_offset or 0)
        if not _NOTHING_AFTER.fullmatch(tail):
            lines[-1] = lines[-1].removesuffix(tail)
        if not lines[-1].endswith(("\r", "\n")):
            lines[-1] += "\n"
        head = lines[0].encode()[: self.node.col_offset].decode()
        for node in sorted(texts, key=lambda one: (one.lineno, one.col_offset), reverse=True):
            first, last = node.lineno - self.first, (node.end_lineno or node.lineno) - self.first
            before = lines[first].encode()[: node.col_offset].decode()
            breaks = "".join(line[len(line.rstrip("\r\n")) :] for line in lines[first:last])
            text = f"({texts[node]}{breaks})" if breaks else texts[node]
            lines[first : last + 1] = split_lines(before + text + from_byte(lines[last], node.end_col_offset or 0))
        is_alone = isinstance(self.node, Definition) or not head.strip(" \t\f")
        return "".join(lines) if is_alone else "".join(lines).removeprefix(head)

    def place(self, line: int | None = None) -> str:
        """Where it stands, for a message."""
        return self.text.place(line or self.first)

    def comes_after(self, other: "Statement") -> bool:
        """Whether it was executed later than ``other``."""
        return (self.text.order, self.first) > (other.text.order, other.first)


class Space:
    """A notebook (its cells in the order of their execution) or one file, and what its names hold now."""

    def __init__(self, live: Mapping[str, Any], texts: list[Text], file: str | None = None) -> None:
        self.live = live
        self.texts = texts
        self.file = file
        self.package: str = (live.get("__package__") or "") if file else ""
        self._known: dict[str, Text | None] = {file: texts[0]} if file else {}

    @classmethod
    def of(cls, live: Mapping[str, Any], file: str | None) -> "Space | None":
        """The space of the globals ``live``; ``file``: what they come from, unless a notebook. None without text."""
        if isinstance(live.get("_ih"), list) and "get_ipython" in live:
            return cls(live, list(_cells(live["_ih"])))
        if file is None or not Path(file).is_file():
            return None
        path = Path(file).resolve()
        shown = str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else path.name
        return cls(live, [Text.of_file(path, shown)], file)

    @cached_property
    def statements(self) -> list[Statement]:
        """All at the top level, in the order of their execution."""
        return [statement for text in self.texts for statement in text.statements]

    @cached_property
    def futures(self) -> list[Statement]:
        """The ``from __future__`` imports, the first of each wording."""
        found = [s for s in self.statements if isinstance(s.node, ast.ImportFrom) and s.node.module == "__future__"]
        return list({ast.unparse(s.node): s for s in reversed(found)}.values())[::-1]

    @cached_property
    def flags(self) -> int:
        """The compiler flags of ``futures``."""
        names = {alias.name for s in self.futures if isinstance(s.node, ast.ImportFrom) for alias in s.node.names}
        return sum(getattr(__future__, name).compiler_flag for name in names if hasattr(__future__, name))

    @cached_property
    def binders(self) -> Mapping[str, list[Statement]]:
        """By name: the statements that bind it."""
        found: dict[str, list[Statement]] = defaultdict(list)
        for statement in self.statements:
            for name in binds(statement.node, self.flags):
                found[name].append(statement)
        return found

    def binder(self, name: str) -> Statement | None:
        """The newest statement that binds ``name``, but for one that assigns a literal which it does not hold."""
        value = self.live.get(name, ABSENT)
        stars = [
            s
            for s in self.statements
            if isinstance(s.node, ast.ImportFrom)
            and s.node.names[0].name == "*"
            and getattr(sys.modules.get(absolute(s.node, self.package)), name, self) is value
        ]
        binders = [*stars, *self.binders.get(name, [])]
        likely = (one for one in reversed(binders) if value is ABSENT or may_give(one.node, name, value))
        return next(likely, binders[-1] if binders else None)

    def text_of(self, code: CodeType) -> Text | None:
        """The cell or file that ``code`` was compiled from; of equal cells the one executed last."""
        file = code.co_filename
        if file == _TIMED:
            timed = [text for text in self.texts if text.line > 1 and _key(code) in text.definitions]
            return timed[-1] if timed else None
        if file not in self._known:
            self._known[file] = None if self.file else self._remembered(file)
        return self._known[file]

    def _remembered(self, file: str) -> Text | None:
        entry = linecache.cache.get(file)
        if entry is None or len(entry) == 1:
            return None
        content = "".join(entry[2])
        equal = [text for text in self.texts if text.text.rstrip("\n") == content.rstrip("\n")]
        return equal[-1] if equal else Text(Path(file).name, content, order=-1)

    def definition(self, code: CodeType) -> Statement | None:
        """The ``def`` that ``code`` was compiled from, at any depth."""
        text = self.text_of(code)
        return text.definitions.get(_key(code)) if text else None

    def located(self, value: object) -> Statement | None:
        """The statement that defines a function or a class of this space, or what a decorator has made of one."""
        for depth, code in enumerate(self._codes(value)):
            inner = self.definition(code)
            if inner is not None and isinstance(value, type):
                around = [one for one in inner.text.outer if one.first <= inner.first <= one.last]
                return next((one for one in around if isinstance(one.node, ast.ClassDef)), None)
            if inner is not None and inner in inner.text.outer:
                is_plain = depth == 0 and isinstance(value, FunctionType | staticmethod)
                is_decorated = isinstance(inner.node, Definition) and bool(inner.node.decorator_list)
                return inner if is_plain or is_decorated else None
        if not isinstance(value, type) or value.__module__ != self.live.get("__name__"):
            return None
        classes = [one for text in self.texts for one in text.outer if isinstance(one.node, ast.ClassDef)]
        return next((one for one in reversed(classes) if getattr(one.node, "name", "") == value.__qualname__), None)

    def is_outdated(self, value: object) -> bool:
        """Whether the file no longer holds the code of a function or a class of it; a cell never changes."""
        if not self.file or type(self.live.get("__loader__")) is not SourceFileLoader:  # which changes no code
            return False
        return any(_without_lines(code) not in self._code_of_file for code in self._codes(value))

    @cached_property
    def _code_of_file(self) -> set[CodeType]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            waiting, found = [compile(self.texts[0].tree, "<file>", "exec", dont_inherit=True)], set[CodeType]()
        while waiting:
            inner = [one for one in waiting.pop().co_consts if isinstance(one, CodeType)]
            found |= {_without_lines(one) for one in inner}
            waiting += inner
        return found

    def _codes(self, value: object) -> Iterator[CodeType]:
        """Code objects written here: of a function, or of the methods of a class."""
        for one in list(vars(value).values()) if isinstance(value, type) else [value]:
            for function in layers(one):
                is_own = not isinstance(value, type) or function.__qualname__.startswith(value.__qualname__ + ".")
                if function.__globals__ is self.live and is_own and function.__code__.co_filename != "<string>":
                    yield function.__code__

    def lambda_of(self, code: CodeType) -> tuple[Text, ast.Lambda] | None:
        """The expression that a lambda was compiled from."""
        text = self.text_of(code)
        if text is None:
            return None
        spans = [(a, c, b, d) for a, b, c, d in code.co_positions() if None not in (a, b, c, d) and (c, d) != (0, 0)]
        found = [
            node
            for node in ast.walk(text.tree)
            if isinstance(node, ast.Lambda)
            and node.lineno == code.co_firstlineno
            and arguments_of(node.args) == [*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]]
            and all(_holds(node.body, span) for span in spans)
        ]
        return (text, min(found, key=lambda node: len(ast.unparse(node)))) if found else None

    def registered_with(self, name: str, statement: Statement) -> list[Statement]:
        """Later definitions decorated with something of ``name``, as ``@name.register``; the newest of each wording."""
        found: dict[str, Statement] = {}
        for one in self.statements:
            if isinstance(one.node, Definition) and one.comes_after(statement):
                called = [getattr(each, "func", each) for each in one.node.decorator_list]
                if any(isinstance(each, ast.Attribute) and root_of(each) == name for each in called):
                    found[one.source] = one
        return list(found.values())

    def gives(self, node: ast.stmt, name: str) -> bool:
        """Whether the import binds ``name`` to what it holds; of functions and classes, one of that name will do."""
        value = self.live.get(name, ABSENT)
        for alias in node.names if isinstance(node, Import) else []:
            if isinstance(node, ast.Import) and name == (alias.asname or alias.name.partition(".")[0]):
                return isinstance(value, ModuleType)
            if isinstance(node, ast.ImportFrom) and name == (alias.asname or alias.name):
                home = absolute(node, self.package)
                given = getattr(sys.modules.get(home), alias.name, sys.modules.get(f"{home}.{alias.name}", ABSENT))
                return given is value or isinstance(value, ModuleType | type | FunctionType)
            if isinstance(node, ast.ImportFrom) and alias.name == "*":
                return True
        return False


def absolute(node: ast.ImportFrom, package: str) -> str:
    """The full name of the module that ``node`` imports from, in a module of ``package``."""
    parents = package.split(".")
    parents = parents[: len(parents) + 1 - node.level] if node.level else []
    return ".".join([*parents, *([node.module] if node.module else [])])


def parse(text: str) -> ast.Module:
    """The syntax tree, with ``await`` allowed at the top level as in a cell, and no warning said twice."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = compile(text, "<cell>", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    assert isinstance(tree, ast.Module)
    return tree


def from_byte(line: str, column: int) -> str:
    """The rest of the line from a column of the syntax tree on, which counts UTF-8 bytes."""
    return line.encode()[column:].decode()


def arguments_of(arguments: ast.arguments) -> list[str]:
    return [one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def literal(node: ast.expr) -> object:
    """The value of a literal, else ABSENT."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return ABSENT


def layers(value: object) -> Iterator[FunctionType]:
    """The function itself, then those that its decorators say they were put around; asks no ``__getattr__``."""
    for _ in range(100):
        if isinstance(value, FunctionType):
            yield value
        if isinstance(value, property):
            value = value.fget
        elif isinstance(value, staticmethod | classmethod):
            value = value.__func__
        else:
            value = inspect.getattr_static(value, "__wrapped__", None)


def may_give(node: ast.stmt, name: str, value: object) -> bool:
    """Unless the statement assigns ``name`` a literal that is another value."""
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    is_alone = [ast.unparse(target) for target in targets if target] == [name]
    if not is_alone or not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
        return True
    given = literal(node.value)
    return given is ABSENT or (type(given) is type(value) and repr(given) == repr(value))


def _cells(history: list[str]) -> Iterator[Text]:
    for number, text in enumerate(history):
        cell = Text(f"cell In[{number}]", text, order=number)
        if number and text:
            yield cell
            if body := _magic_body(cell):
                yield Text(cell.origin, body, order=number, line=2)


def _magic_body(cell: Text) -> str | None:
    """What stands below ``%%time`` or another cell magic."""
    if "run_cell_magic(" not in cell.text or len(cell.tree.body) != 1:
        return None
    match cell.tree.body[0]:
        case ast.Expr(value=ast.Call(args=[ast.Constant("time" | "capture"), *_, ast.Constant(str(body))])):
            return body
    return None


def _key(code: CodeType) -> tuple[str, int]:
    return code.co_name, code.co_firstlineno


def _holds(node: ast.expr, span: tuple[Any, ...]) -> bool:
    first, last = (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)
    return first <= span[:2] and span[2:] <= last


def _without_lines(code: CodeType) -> CodeType:
    """The code as if it stood nowhere: equal for functions that say the same."""
    within = (_without_lines(one) if isinstance(one, CodeType) else one for one in code.co_consts)
    return code.replace(co_filename="", co_firstlineno=0, co_linetable=b"", co_consts=tuple(within))


def parse_statement(source: str, statement: Statement) -> ast.stmt:
    """The syntax tree of a changed statement, at its lines."""
    if not statement.is_indented:
        node = parse(source).body[0]
        ast.increment_lineno(node, statement.first - 1)
        return node
    block = parse("if True:\n" + source).body[0]
    assert isinstance(block, ast.If)
    ast.increment_lineno(block, statement.first - 2)
    return block.body[0]
