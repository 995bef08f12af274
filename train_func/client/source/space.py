"""The namespace a function lives in: its live values, and every statement that was executed to make them."""

import __future__

import ast
import inspect
import linecache
import sys
from collections import ChainMap, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from train_func.client.source.constants import changes, expression_of, root_of
from train_func.client.source.evaluation import NotHarmless, evaluate, same
from train_func.client.source.modules import read_text
from train_func.client.source.statements import Definition, Statement, Text
from train_func.client.source.uses import binds

_TIMED = "<timed exec>"  # what a cell under %%time is compiled as


@dataclass(frozen=True)
class Binding:
    """The statement that gave a name its value; ``gives``: whether it still does, None when that cannot be told."""

    statement: Statement
    gives: bool | None


class Space:
    """A notebook (its cells in the order of their execution) or one file."""

    def __init__(self, live: Mapping[str, Any], texts: list[Text], *, file: str | None = None) -> None:
        self.live = live
        self.texts = texts
        self.package: str = (live.get("__package__") or "") if file else ""
        self._known: dict[str, Text | None] = {file: texts[0]} if file else {}
        self._is_notebook = file is None

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
    def _binders(self) -> dict[str, list[Statement]]:
        found: dict[str, list[Statement]] = defaultdict(list)
        for statement in self.statements:
            for name in binds(statement.node, self.flags):
                found[name].append(statement)
        return found

    def text_of(self, code: CodeType) -> Text | None:
        """The cell or file that ``code`` was compiled from; of equal cells the one executed last."""
        file = code.co_filename
        if file == _TIMED:
            timed = [text for text in self.texts if text.line > 1 and _key(code) in text.functions]
            return timed[-1] if timed else None
        if file not in self._known:
            self._known[file] = self._remembered(file) if self._is_notebook else None
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
        return text.functions.get(_key(code)) if text else None

    def binding(self, name: str) -> Binding | None:
        """The newest statement that gives ``name`` the value it has; of several that do not, the newest."""
        value = self.live[name]
        located = self._located(name, value)
        first: Binding | None = None
        for statement in reversed([*self._stars(name), *self._binders.get(name, [])]):
            is_other = located is not None and isinstance(statement.node, Definition) and statement is not located
            gives = False if is_other else self._gives(statement, name, value)
            if gives is not False:
                return Binding(statement, gives)
            first = first or Binding(statement, gives)
        return Binding(located, None) if located else first

    def earlier(self, name: str, user: Statement) -> Statement | None:
        """The binding that ``user`` saw, when ``user`` itself or a later line of its cell has bound ``name`` again.

        So it is with ``rows = sorted(rows)``. A name bound again by another cell counts with its newest value.
        """
        bindings = self._binders.get(name, [])
        before = [one for one in bindings if user.comes_after(one)]
        is_own = any(one.text is user.text and one.first == user.first for one in bindings)
        if not before or not (is_own or (bindings[-1].text is user.text and bindings[-1].comes_after(user))):
            return None
        other = [one for one in before if one.source != user.source]
        if is_own and other and other[-1] is not before[-1] and self._gives_after(other[-1], user, name):
            return other[-1]  # a cell that was executed twice, and once would have done
        return before[-1]

    def before(self, name: str, user: Statement) -> Statement | None:
        """The newest binding of ``name`` that was executed before ``user``, though it may be deleted by now."""
        return next((one for one in reversed(self._binders.get(name, [])) if user.comes_after(one)), None)

    def in_a_block(self, name: str) -> Statement | None:
        """The newest block that would have bound ``name``, had it gone the other way."""
        binders = reversed(self._binders.get(name, []))
        return next((one for one in binders if isinstance(one.node, ast.If | ast.Try | ast.Match | ast.With)), None)

    def imports_of(self, dotted: str) -> list[Statement]:
        """The statements ``import a.b`` of that dotted name, the newest."""
        found = [
            s
            for s in self._binders.get(dotted.partition(".")[0], [])
            if isinstance(s.node, ast.Import)
            and any(alias.name == dotted and not alias.asname for alias in s.node.names)
        ]
        return found[-1:] if dotted in sys.modules else []

    def changed_by(self, name: str, statement: Statement, *, by_method: bool) -> Statement | None:
        """The newest later statement that changed what ``name`` holds in place."""
        later = (one for one in reversed(self.statements) if one.comes_after(statement))
        return next((one for one in later if changes(one, name, by_method=by_method)), None)

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

    def _stars(self, name: str) -> list[Statement]:
        return [
            s
            for s in self.statements
            if isinstance(s.node, ast.ImportFrom)
            and s.node.names[0].name == "*"
            and getattr(sys.modules.get(self._absolute(s.node)), name, self) is self.live[name]
        ]

    def _absolute(self, node: ast.ImportFrom) -> str:
        parents = self.package.split(".")
        parents = parents[: len(parents) + 1 - node.level] if node.level else []
        return ".".join([*parents, *([node.module] if node.module else [])])

    def _located(self, name: str, value: object) -> Statement | None:
        """The top-level statement that holds the code of a function, or of a class's method."""
        for code in _codes(value, self.live):
            found = self.definition(code)
            for statement in found.text.statements if found else []:
                inside = found is not None and statement.first <= found.first <= statement.last
                if inside and name in binds(statement.node, self.flags):
                    return statement
        return None

    def _gives(self, statement: Statement, name: str, value: object) -> bool | None:
        node = statement.node
        if isinstance(node, Definition):
            return None if callable(value) or node.decorator_list else False
        try:
            return same(self._value(statement, name), value)
        except NotHarmless:
            return None

    def _gives_after(self, earlier: Statement, statement: Statement, name: str) -> bool:
        """Whether ``statement``, executed right after ``earlier``, gives ``name`` its value, as far as can be told."""
        try:
            return same(self._value(statement, name, {name: self._value(earlier, name)}), self.live[name])
        except NotHarmless:
            return True

    def _value(self, statement: Statement, name: str, seen: Mapping[str, Any] | None = None) -> object:
        """What the assignment gave ``name``; raises NotHarmless when that cannot be told harmlessly."""
        expression = expression_of(statement.node, name)
        if expression is None:
            raise NotHarmless(name)
        if seen is None:
            names = {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}
            earlier = {used: self.earlier(used, statement) for used in names}
            seen = {used: self._value(binder, used) for used, binder in earlier.items() if binder}
        return evaluate(expression, ChainMap(dict(seen), dict(self.live)))


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


def _key(code: CodeType) -> tuple[str, int]:
    return code.co_name, code.co_firstlineno


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
