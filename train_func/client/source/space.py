"""The namespace a function lives in: its live values, and every statement that was executed to make them."""

import __future__

import ast
import inspect
import linecache
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from train_func.client.source.changes import attributes_set, root_of
from train_func.client.source.modules import read_text
from train_func.client.source.statements import Definition, Statement, Text
from train_func.client.source.uses import binds

_TIMED = "<timed exec>"  # what a cell under %%time is compiled as
_NONE = object()


class Space:
    """A notebook (its cells in the order of their execution) or one file."""

    def __init__(self, live: Mapping[str, Any], texts: list[Text], *, file: str | None = None) -> None:
        self.live = live
        self.texts = texts
        self.package: str = (live.get("__package__") or "") if file else ""
        self._known: dict[str, Text | None] = {file: texts[0]} if file else {}
        self.is_file = file is not None

    @classmethod
    def of(cls, live: Mapping[str, Any], file: str | None) -> "Space | None":
        """The space of the globals ``live``; ``file``: what they come from, unless a notebook. None without text."""
        if isinstance(live.get("_ih"), list) and "get_ipython" in live:
            return cls(live, list(_cells(live["_ih"])))
        if file is None or not Path(file).is_file():
            return None
        return cls(live, [Text(_shown(Path(file)), read_text(Path(file)))], file=file)

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
        names = [alias.name for s in self.futures if isinstance(s.node, ast.ImportFrom) for alias in s.node.names]
        features = [getattr(__future__, name, None) for name in names]
        return sum({feature.compiler_flag for feature in features if feature})

    @cached_property
    def binders(self) -> Mapping[str, list[Statement]]:
        """By name: the statements that bind it."""
        found: dict[str, list[Statement]] = defaultdict(list)
        for statement in self.statements:
            for name in binds(statement.node, self.flags):
                found[name].append(statement)
        return found

    def binder(self, name: str) -> Statement | None:
        """The newest statement that binds ``name``, without those that have plainly not given its value."""
        binders = [*self._stars(name), *self.binders.get(name, [])]
        value = self.live.get(name, _NONE)
        likely = (one for one in reversed(binders) if value is _NONE or _may_give(one.node, name, value))
        return next(likely, binders[-1] if binders else None)

    def text_of(self, code: CodeType) -> Text | None:
        """The cell or file that ``code`` was compiled from; of equal cells the one executed last."""
        file = code.co_filename
        if file == _TIMED:
            timed = [text for text in self.texts if text.line > 1 and _key(code) in text.functions]
            return timed[-1] if timed else None
        if file not in self._known:
            self._known[file] = None if self.is_file else self._remembered(file)
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
        code = self._as_in_file(code)
        text = self.text_of(code)
        return text.functions.get(_key(code)) if text else None

    def located(self, value: object) -> Statement | None:
        """The statement that defines a function or a class of this space, or what a decorator has made of one."""
        for depth, code in enumerate(map(self._as_in_file, _codes(value, self.live))):
            found = self.definition(code)
            for statement in found.text.definitions if found else []:
                inside = found is not None and statement.first <= found.first <= statement.last
                if not (inside and isinstance(statement.node, Definition)):
                    continue
                if isinstance(value, type) and isinstance(statement.node, ast.ClassDef):
                    return statement
                is_it = found is not None and (_name_of(statement.node), statement.first) == _key(code)
                is_plain = depth == 0 and isinstance(value, FunctionType | staticmethod)
                if is_it and (is_plain or statement.node.decorator_list):
                    return statement
        if not isinstance(value, type) or value.__module__ != self.live.get("__name__"):
            return None
        definitions = [one for text in self.texts for one in text.definitions if isinstance(one.node, ast.ClassDef)]
        return next((one for one in reversed(definitions) if _name_of(one.node) == value.__qualname__), None)

    def is_outdated(self, value: object) -> bool:
        """Whether a file no longer says what a function or a class of it does; a cell never changes."""
        return self._codes is not None and any(
            _without_lines(code) not in self._codes
            for code in _codes(value, self.live)
            if not code.co_filename.startswith("<")
        )

    def _as_in_file(self, code: CodeType) -> CodeType:
        """The same code at the lines that it has in its file now: they move, and IPython's autoreload keeps none."""
        codes = self._codes or {}
        return code if code in codes else codes.get(_without_lines(code), code)

    @cached_property
    def _codes(self) -> dict[CodeType, CodeType] | None:
        """All code of the file as it is now, by itself and without its lines.

        None for cells, and for a loader that changes code.
        """
        if not self.is_file or type(self.live.get("__loader__")) is not SourceFileLoader:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = compile(self.texts[0].tree, "<file>", "exec", dont_inherit=True)
        found, waiting = dict[CodeType, CodeType](), [code]
        while waiting:
            inner = [one for one in waiting.pop().co_consts if isinstance(one, CodeType)]
            found |= {key: one for one in inner for key in (one, _without_lines(one))}
            waiting += inner
        return found

    def lambda_of(self, code: CodeType) -> tuple[Text, ast.Lambda] | None:
        """The expression that a lambda was compiled from."""
        code = self._as_in_file(code)
        text = self.text_of(code)
        if text is None:
            return None
        names = [*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]]
        spans = [(a, c, b, d) for a, b, c, d in code.co_positions() if None not in (a, b, c, d) and (c, d) != (0, 0)]
        found = [
            node
            for node in ast.walk(text.tree)
            if isinstance(node, ast.Lambda)
            and node.lineno == code.co_firstlineno
            and [one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)] == names
            and all(_holds(node.body, span) for span in spans)
        ]
        return (text, min(found, key=lambda node: len(ast.unparse(node)))) if found else None

    def imports_of(self, dotted: str) -> list[Statement]:
        """The statements ``import a.b`` of that dotted name, the newest."""
        found = [
            s
            for s in self.binders.get(dotted.partition(".")[0], [])
            if isinstance(s.node, ast.Import)
            and any(alias.name == dotted and not alias.asname for alias in s.node.names)
        ]
        return found[-1:] if dotted in sys.modules else []

    def attributes_set(self, name: str, statement: Statement) -> dict[str, Statement]:
        """The attributes that later statements set on what ``statement`` defined as ``name``; the newest of each."""
        later = (one for one in self.statements if one.comes_after(statement) and not isinstance(one.node, Definition))
        return {attribute: one for one in later for attribute in attributes_set(one.node, name)}

    def user_of(self, name: str, statement: Statement) -> Statement:
        """The newest later statement that gives ``name`` to a call, as ``setattr`` is one; else ``statement``."""
        for later in reversed(self.statements):
            if isinstance(later.node, Definition) or not later.comes_after(statement):
                continue
            given = [arg for one in ast.walk(later.node) if isinstance(one, ast.Call) for arg in one.args]
            if any(isinstance(arg, ast.Name) and arg.id == name for arg in given):
                return later
        return statement

    def registered_with(self, name: str, statement: Statement) -> list[Statement]:
        """Later definitions decorated with something of ``name``, as ``@name.register``; the newest of each wording."""
        found = [
            later
            for later in self.statements
            if isinstance(later.node, Definition)
            and later.comes_after(statement)
            and any(_belongs_to(decorator, name) for decorator in later.node.decorator_list)
        ]
        return list({s.source: s for s in found}.values())

    def gives(self, node: ast.stmt, name: str) -> bool:
        """Whether the import binds ``name`` to what it holds; of objects, one of the same name will do."""
        value = self.live.get(name, _NONE)
        for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else []:
            if isinstance(node, ast.Import) and name == (alias.asname or alias.name.partition(".")[0]):
                return isinstance(value, ModuleType)
            if isinstance(node, ast.ImportFrom) and name == (alias.asname or alias.name):
                home = self.absolute(node)
                given = getattr(sys.modules.get(home), alias.name, sys.modules.get(f"{home}.{alias.name}", _NONE))
                return given is value or isinstance(value, ModuleType | type | FunctionType)
            if isinstance(node, ast.ImportFrom) and alias.name == "*":
                return True
        return False

    def absolute(self, node: ast.ImportFrom) -> str:
        """The full name of the module that ``node`` imports from."""
        parents = self.package.split(".")
        parents = parents[: len(parents) + 1 - node.level] if node.level else []
        return ".".join([*parents, *([node.module] if node.module else [])])

    def _stars(self, name: str) -> list[Statement]:
        return [
            s
            for s in self.statements
            if isinstance(s.node, ast.ImportFrom)
            and s.node.names[0].name == "*"
            and getattr(sys.modules.get(self.absolute(s.node)), name, self) is self.live.get(name, _NONE)
        ]


def _may_give(node: ast.stmt, name: str, value: object) -> bool:
    """Unless it assigns ``name`` a literal that is another value."""
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    is_alone = [ast.unparse(target) for target in targets if target] == [name]
    if not is_alone or not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
        return True
    try:
        given = ast.literal_eval(node.value)
        return type(given) is type(value) and (given is value or bool(given == value) or repr(given) == repr(value))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return True


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
    node = cell.tree.body[0]
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or ast.unparse(call.args[0]) not in {"'time'", "'capture'"}:
        return None
    body = call.args[-1]
    return body.value if isinstance(body, ast.Constant) and isinstance(body.value, str) else None


def _shown(path: Path) -> str:
    path = path.resolve()
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else path.name


def _name_of(node: ast.stmt) -> str:
    return node.name if isinstance(node, Definition) else ""


def _key(code: CodeType) -> tuple[str, int]:
    return code.co_name, code.co_firstlineno


def _holds(node: ast.expr, span: tuple[Any, ...]) -> bool:
    first, last = (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)
    return first <= span[:2] and span[2:] <= last


def _without_lines(code: CodeType) -> CodeType:
    """The code as if it stood nowhere: equal for functions that say the same."""
    within = (_without_lines(one) if isinstance(one, CodeType) else one for one in code.co_consts)
    return code.replace(co_firstlineno=0, co_linetable=b"", co_consts=tuple(within))


def _codes(value: object, live: Mapping[str, Any]) -> Iterator[CodeType]:
    """Code objects written where ``live`` is: of a function, or of the methods of a class."""
    for one in list(vars(value).values()) if isinstance(value, type) else [value]:
        for function in layers(one):
            is_own = not isinstance(value, type) or function.__qualname__.startswith(value.__qualname__ + ".")
            if function.__globals__ is live and is_own and function.__code__.co_filename != "<string>":
                yield function.__code__


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


def _belongs_to(decorator: ast.expr, name: str) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(called, ast.Attribute) and root_of(called) == name
