"""One module of what travels, made of pieces: what is used of its code, verbatim, and the values of its names."""

import ast
import builtins
import enum
import sys
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Protocol

from train_func.client.source.changes import empty_of, set_within
from train_func.client.source.faults import IPYTHON_ONLY, no_value, of_a_machine, of_ipython, outdated, remedy
from train_func.client.source.headers import (
    ABSENT,
    attributes_added,
    bound_since,
    computed_by,
    computed_in,
    is_literal,
    is_successor,
    looked_up,
    moved,
    mutable_defaults,
    rewritten,
    with_defaults,
)
from train_func.client.source.machine import of_this_machine, of_this_machine_by
from train_func.client.source.piece import ImportStatement, Piece
from train_func.client.source.repeats import Repeats
from train_func.client.source.space import Space
from train_func.client.source.statements import Definition, Statement, Text, parsed
from train_func.client.source.uses import OF_A_MODULE
from train_func.client.source.values import ALLOWED, NoValueError, Writer, is_mutable, is_plain

BUILTINS = frozenset(dir(builtins)) - IPYTHON_ONLY


class Whole(Protocol):
    """All that travels, of which a Part is one module."""

    function: str
    faults: list[str]
    missing: list[tuple[str, "Part", Piece, int]]
    unimported: dict[str, str]
    repeats: Repeats
    writer: Writer

    def follow(self, part: "Part", piece: Piece) -> None:
        """Looks at what ``piece`` needs, when its turn comes."""

    def look_for_secrets(self, piece: Piece, place: str) -> None:
        """In a value that was computed; ``place``: of the statement that did."""

    def names_of(self, part: "Part", value: object) -> list[str]:
        """The names of a module that hold a mutable object."""

    def need_in(self, module: str, name: str, user: Piece | None, text: Text, line: int) -> None:
        """Lets ``name`` of another module travel, when that is a local one."""


class Part:
    """One module of what travels; the values in it are written for it."""

    def __init__(self, collection: Whole, space: Space, name: str, *, is_live: bool = True) -> None:
        self.collection = collection
        self.space = space
        self.name = name
        self.is_live = is_live
        self.pieces: list[Piece] = []
        self._of_statement: dict[int, Piece] = {}
        self.of_name: dict[str, list[Piece]] = {}
        self._made_by: dict[int, object] = {}
        self.values: dict[str, Piece] = {}
        self._generated: dict[str, tuple[str, Piece]] = {}
        self._using: list[tuple[Piece | None, Text, int]] = []  # who needs what is written, innermost last
        self._written: list[list[Piece]] = []  # what is needed by the expressions that are written, innermost last

    # What the statements of this module look up.

    def need(self, name: str, user: Piece, line: int, *, is_certain: bool = True) -> list[Piece]:
        """The pieces that bind ``name``, which ``user`` looks up in ``line``."""
        if name in OF_A_MODULE or any(name == alias for alias, _ in self._generated.values()):
            return []
        if name not in self.of_name:
            self.of_name[name] = []
            num_faults = len(self.collection.faults)
            pieces = self._find(name, user, line, is_certain=is_certain)
            if pieces is None or (not is_certain and len(self.collection.faults) > num_faults):
                del self.of_name[name]  # and the next place that uses the name is accused as well
                if not is_certain:
                    del self.collection.faults[num_faults:]
                return []
            self.of_name[name] = pieces
        return self.of_name[name]

    def _find(self, name: str, user: Piece, line: int, *, is_certain: bool) -> list[Piece] | None:
        live, binder = self.space.live, self.space.binder(name)
        if name not in live:
            if name in BUILTINS:
                return []
            if not self.is_live and binder:
                return self._unseen(name, binder)
            if binder is None or not isinstance(binder.node, ast.If | ast.Try | ast.Match | ast.With):
                if is_certain:
                    self.collection.missing.append((name, self, user, line))
                return None
            return []  # a block that went the other way, and the use may be as conditional
        value = live[name]
        if self.space.is_outdated(value):
            self.collection.faults.append(outdated(name, self.space.texts[0].origin))
            return None
        if binder and isinstance(binder.node, ImportStatement) and self.space.gives(binder.node, name):
            return [self.statement(binder)]
        located = self._definition_of(name, value, binder)
        if located is not None:
            return [located]
        if isinstance(value, ModuleType):
            return [self._import_as(value, name, binder, user)]
        if name in IPYTHON_ONLY or (binder is None and name.startswith("_") and self.name == ""):
            self.collection.faults.append(of_ipython(name, user.place(line)))
            return None
        return self._value(name, value, binder, user, line)

    def _unseen(self, name: str, binder: Statement) -> list[Piece] | None:
        """Of a module that cannot be imported here: what its text says for certain."""
        node = binder.node
        is_certain = isinstance(node, ast.Assign) and is_literal(node.value)
        if isinstance(node, (Definition, ImportStatement)) or is_certain:
            return [self.statement(binder)]
        self.collection.faults.append(
            f"{binder.place()}: the value of {name!r} is not known, because {self.name} cannot be imported here "
            f"({self.collection.unimported[self.name]}). Build it inside a function, or make the import work"
        )
        return None

    def _definition_of(self, name: str, value: object, binder: Statement | None) -> Piece | None:
        statement = self.space.located(value)
        if statement is None and binder and isinstance(binder.node, Definition) and not is_plain(value):
            statement = binder  # what a decorator made
        if statement is not None and not isinstance(statement.node, Definition):
            return None
        if statement is not None and isinstance(statement.node, Definition):
            is_wrapped = isinstance(value, FunctionType) and bool(value.__closure__) and binder is not statement
            if is_wrapped and not statement.node.decorator_list:
                return None  # made of it by a call
            piece = self.statement(statement, value)
            if statement.node.name == name:
                return piece
            return self._alias(name, statement.node.name, piece, binder)
        if binder and hasattr(ast, "TypeAlias") and isinstance(binder.node, ast.TypeAlias):
            return self.statement(binder)
        is_lambda = isinstance(value, FunctionType) and value.__name__ == "<lambda>" and not value.__closure__
        node = getattr(binder.node, "value", None) if binder else None
        if not (is_lambda and binder and isinstance(node, ast.Lambda) and isinstance(value, FunctionType)):
            return None
        return None if any(computed_by(node, value, self.space.live)) else self.statement(binder)

    def _alias(self, name: str, of: str, piece: Piece, binder: Statement | None) -> Piece:
        text, line = (binder.text, binder.first) if binder else (piece.text, piece.line)
        alias = Piece(text, line, f"{name} = {of}\n", binder.source if binder else f"{name} = {of}\n")
        alias.now.append(piece)
        return self.add(alias)

    def _import_as(self, module: ModuleType, name: str, binder: Statement | None, user: Piece) -> Piece:
        text, line = (binder.text, binder.first) if binder else (user.text, user.line)
        source = f"import {module.__name__} as {name}\n"
        node = parsed(source).body[0]
        piece = Piece(text, line, source, source, node=node, is_import=True)
        return self.add(piece)

    def _value(self, name: str, value: object, binder: Statement | None, user: Piece, line: int) -> list[Piece] | None:
        place = binder.place() if binder else user.place(line)
        text, first = (binder.text, binder.first) if binder else (user.text, line)
        names = self.collection.names_of(self, value) if is_mutable(value) else []
        if names and names[0] != name and (held := self.need(names[0], user, line, is_certain=False)):
            return [self._alias(name, names[0], held[0], binder)]
        if fact := of_this_machine_by(name, self.space):
            self.collection.faults.append(of_a_machine(name, place, fact, self.collection.function))
            return None
        written = self._made_class(value, text, first) or self.write(value, text, first, is_named=True)
        if isinstance(written, NoValueError):
            self.collection.faults.append(no_value(name, place, written, value, self.collection.function))
            return None
        original = binder.source if binder else f"{name} = ...\n"
        piece = Piece(text, first, f"{name} = {written[0]}\n", original, statement=binder, now=written[1])
        self.collection.look_for_secrets(piece, place)
        self.values[name] = piece
        return [self.add(piece)]

    def _made_class(self, value: object, text: Text, line: int) -> tuple[str, list[Piece]] | NoValueError | None:
        """A class of named tuples or an enum that was made by a call, without a body."""
        if not isinstance(value, type) or value.__module__ != self.space.live.get("__name__"):
            return None
        made: tuple[object, ...]
        if value.__bases__ == (tuple,) and hasattr(value, "_fields"):
            path, made = "collections.namedtuple", (value.__name__, [*value._fields])
            words: dict[str, object] = {"defaults": [*value._field_defaults.values()]}  # type: ignore[attr-defined]
        elif issubclass(value, enum.Enum) and value.__bases__[0].__module__ == "enum":
            members = [(name, member._value_) for name, member in value.__members__.items()]
            path, made, words = f"enum.{value.__bases__[0].__name__}", (value.__name__, members), {}
        else:
            return None
        home, _, maker = path.rpartition(".")
        written = self.write((made, words), text, line, is_named=True)
        given = self.write(made, text, line, is_named=True)
        if isinstance(written, NoValueError) or isinstance(given, NoValueError):
            return written
        self._using.append((None, text, line))
        self._written.append([])
        called = f"{self.module(home)}.{maker}"
        self._using.pop()
        needed = [*written[1], *self._written.pop()]
        rest = written[0][len(given[0]) + 3 : -1]
        return f"{called}(*{given[0]}, **{rest}, module=__name__)", needed

    def write(self, value: object, text: Text, line: int, *, is_named: bool) -> tuple[str, list[Piece]] | NoValueError:
        """The expression of a value of the statement at ``line``, with the pieces it needs, or why there is none."""
        self._written.append([])
        self._using.append((None, text, line))
        num_faults = len(self.collection.faults)
        try:
            expression = self.collection.writer.write(value, self, is_named=is_named)
            return expression, list(dict.fromkeys(self._written[-1]))
        except NoValueError as error:
            del self.collection.faults[num_faults:]
            return error
        finally:
            self._using.pop()
            self._written.pop()

    # What the expressions of values in this module look up.

    def reference(self, value: object) -> str | None:
        """The expression that names ``value``, a function or a class, in this module; None when it has no name."""
        if value is type(None):
            return f"{self.builtin('type')}(None)"
        owner = value.__self__ if isinstance(value, MethodType | BuiltinFunctionType) else None
        if isinstance(owner, type) and (named := self.reference(owner)):
            return f"{named}.{value.__name__}"  # type: ignore[attr-defined]  # a class method
        own = self._own(value)
        if own is not None:
            return own
        homes = [getattr(value, "__module__", None), getattr(owner, "__name__", None), type(value).__module__]
        # The qualified name of torch.sigmoid is one of a class that no module has.
        names = dict.fromkeys(getattr(value, name, None) for name in ("__qualname__", "__name__"))
        for module in (one for one in homes if isinstance(one, str) and one != "__main__"):
            held = (
                name for name in names if isinstance(name, str) and looked_up(sys.modules.get(module), name) is value
            )
            name = next(held, None)
            if name is None or module.startswith("train_func.client"):
                continue  # of the client nothing works in a worker
            if module == "builtins":
                return self.builtin(name)
            self.collection.need_in(module, name.partition(".")[0], *self._using[-1])
            return f"{self.module(module)}.{name}"
        return None

    def _own(self, value: object) -> str | None:
        is_code = isinstance(value, FunctionType) and value.__globals__ is self.space.live
        is_class = isinstance(value, type) and value.__module__ == self.space.live.get("__name__")
        if not is_code and not is_class:
            return None
        assert isinstance(value, FunctionType | type)
        if isinstance(value, FunctionType) and value.__name__ == "<lambda>":
            return self._lambda(value)
        top, _, rest = value.__qualname__.partition(".")
        held = self.space.live.get(top)
        is_same = looked_up(held, rest) is value
        if is_same or is_successor(held, value):
            user, text, line = self._using[-1]
            pieces = self.need(top, user or Piece(text, line, "", ""), line)
            self._written[-1] += pieces
            return value.__qualname__ if pieces else None
        if is_class and isinstance(held, type) and held.__qualname__ == value.__qualname__:
            return None  # a class with other fields has its name by now
        statement = self.space.located(value)
        if statement is None or rest or (isinstance(value, FunctionType) and value.__closure__):
            return None
        piece = self.statement(statement, value)  # its name is bound to something else by now
        return self._named_piece(top, statement, piece)

    def _named_piece(self, name: str, statement: Statement, piece: Piece) -> str:
        key = f"{name} {id(statement)}"
        if key not in self._generated:
            alias = self._free(f"_{name}")
            made = Piece(statement.text, statement.first, f"{alias} = {name}\n", f"{alias} = {name}\n", now=[piece])
            self._generated[key] = alias, self.add(made)
        return self._use(key)

    def _lambda(self, value: FunctionType) -> str | None:
        found = None if value.__closure__ else self.space.lambda_of(value.__code__)
        if found is None:
            return None
        text, node = found
        key = f"lambda {id(value)}"
        if key not in self._generated:
            segment = ast.get_source_segment(text.text, node) or ast.unparse(node)
            given, needed = self._defaults_of(node, value, text)
            if given:
                segment = with_defaults(node, given)
            alias = self._free("_lambda")
            source = f"{alias} = ({segment})\n"
            piece = Piece(text, node.lineno, source, source, node=parsed(source).body[0], now=needed)
            self.collection.look_for_secrets(piece, text.place(node.lineno))
            self._generated[key] = alias, self.add(piece)
        return self._use(key)

    def _defaults_of(
        self, node: ast.Lambda, value: FunctionType, text: Text
    ) -> tuple[dict[tuple[int, int], str], list[Piece]]:
        """The values of a lambda's computed defaults by their places, and what they need."""
        texts: dict[tuple[int, int], str] = {}
        pieces: list[Piece] = []
        for one in computed_by(node, value, self.space.live):
            written = self.write(one.value, text, one.node.lineno, is_named=False)
            if isinstance(written, NoValueError):
                raise written
            texts[one.node.lineno, one.node.col_offset] = written[0]
            pieces += written[1]
        return texts, pieces

    def module(self, name: str) -> str:
        """The name by which this module has the module ``name``."""
        key = f"import {name}"
        if key not in self._generated:
            alias = self._free("_" + name.replace(".", "_"))
            _, text, line = self._using[-1]
            source = f"import {name} as {alias}\n"
            piece = Piece(text, line, source, source, node=parsed(source).body[0], is_import=True)
            self._generated[key] = alias, self.add(piece)
        return self._use(key)

    def builtin(self, name: str) -> str:
        """The name by which this module has the builtin ``name``."""
        return f"{self.module('builtins')}.{name}" if name in self.space.live else name

    def shared(self, value: object) -> str | None:
        """The name of this module for an object that several values hold; of several the first in the alphabet."""
        user, text, line = self._using[-1]
        if names := self.collection.names_of(self, value):
            pieces = self.need(names[0], user or Piece(text, line, "", ""), line)
            self._written[-1] += pieces
            return names[0] if pieces else None
        if not self.collection.repeats.holds(value, self.name):
            return None
        key = f"object {id(value)}"
        if key not in self._generated:
            written = self.write(value, text, line, is_named=True)
            if isinstance(written, NoValueError):
                raise written
            alias = self._free("_shared")
            made = Piece(text, line, f"{alias} = {written[0]}\n", text.lines[line - 1], now=written[1])
            self.collection.look_for_secrets(made, text.place(line))
            self._generated[key] = alias, self.add(made)
        return self._use(key)

    def helper(self, wanted: str, text: str) -> str:
        """The name of a function of this package that the expressions call."""
        if wanted not in self._generated:
            alias = self._free(f"_{wanted}")
            _, origin, line = self._using[-1]
            source = text.format(name=alias)
            self._generated[wanted] = alias, self.add(Piece(origin, line, source, source))
        return self._use(wanted)

    def _use(self, key: str) -> str:
        alias, piece = self._generated[key]
        self._written[-1].append(piece)
        return alias

    def _free(self, name: str) -> str:
        used = {alias for alias, _ in self._generated.values()} | self.space.binders.keys()
        while name in self.space.live or name in used:
            name += "_"
        return name

    # The statements that travel.

    def add(self, piece: Piece) -> Piece:
        """Lets a piece travel, and what it looks up follow."""
        self.pieces.append(piece)
        self.collection.follow(self, piece)
        return piece

    def statement(self, statement: Statement, value: object = ABSENT) -> Piece:
        """The piece of a statement that travels as it is; ``value``: what it has defined."""
        if id(statement) in self._of_statement:
            self._see_twin(statement, value)
        else:
            self._made_by[id(statement)] = value
            piece = Piece.of(statement)
            self._of_statement[id(statement)] = piece
            if isinstance(statement.node, Definition):
                self.collection.faults += bound_since(statement, self.space)
                self._see_header(statement, value, piece)
            self.add(piece)
            if isinstance(statement.node, Definition) and not statement.is_indented:
                self._see_attributes(statement, value, piece)
                piece.later += [
                    self.statement(one) for one in self.space.registered_with(statement.node.name, statement)
                ]
        return self._of_statement[id(statement)]

    def _see_twin(self, statement: Statement, value: object) -> None:
        """Two functions that one statement has made, as in a loop, travel as one: only with the same defaults."""
        first = self._made_by[id(statement)]
        if value is ABSENT or first is ABSENT or value is first:
            return
        own = [[id(one) for one in mutable_defaults(made)] for made in (first, value)]
        texts = []
        for made in (first, value):
            seen = [one for one in computed_in(statement, made, {}) if one.is_default and one.value is not ABSENT]
            written = [self.write(one.value, statement.text, one.node.lineno, is_named=False) for one in seen]
            texts.append([one if isinstance(one, NoValueError) else one[0] for one in written])
        if texts[0] != texts[1] or own[0] != own[1]:
            self.collection.faults.append(
                f"{statement.place()}: several functions with different defaults were made here, and a definition "
                "travels once. Give the value with functools.partial, or pass it as an argument"
            )

    def _see_header(self, statement: Statement, value: object, piece: Piece) -> None:
        """Puts the values of defaults and class attributes in the place of the expressions that computed them."""
        assert isinstance(statement.node, Definition)
        texts: dict[ast.expr, str] = {}
        for one in computed_in(statement, value, self.space.live):
            place = statement.place(one.node.lineno)
            shown = f"{one.name!r} of {statement.node.name!r}"
            if one.value is ABSENT:
                if one.calls and one.is_default:
                    self.collection.faults.append(
                        f"{place}: the default of {shown} is computed by a call, and a decorator hides its value; bind "
                        "it to a name above, or compute it inside the function"
                    )
                continue
            if not one.is_code and (fact := of_this_machine(one.node, self.space)):
                self.collection.faults.append(of_a_machine(one.name, place, fact, self.collection.function))
                continue
            if one.is_changed and not one.attribute and self.space.is_file:
                self.collection.faults.append(outdated(statement.node.name, statement.text.origin))
                continue
            written = self.write(one.value, statement.text, one.node.lineno, is_named=False)
            if isinstance(written, NoValueError):
                is_other = one.calls or one.is_changed or isinstance(one.node, ast.Name | ast.Attribute)
                if is_other and not one.is_code:
                    self.collection.faults.append(
                        no_value(one.name, place, written, one.value, self.collection.function)
                    )
                continue
            expression, needed = written
            given = Piece(statement.text, one.node.lineno, f"({one.name.replace(', ', '_')}) = {expression}\n", "")
            self.collection.look_for_secrets(given, place)
            is_filled = bool(one.attribute) and hasattr(one.value, "clear")  # by definitions, as a registry is
            is_set = one.is_changed and bool(one.attribute)
            if is_filled or is_set:
                self._set_at_the_end(one.attribute, expression, given, [piece, *needed])
            if is_filled and any(each.is_definition for each in needed):
                written = self.write(empty_of(one.value), statement.text, one.node.lineno, is_named=True)
                assert not isinstance(written, NoValueError)
                expression, needed = written
            if not is_set:
                texts[one.node] = expression
                piece.now += needed
        if texts:
            piece.source = rewritten(statement, texts)
            piece.node = moved(piece.source, statement)

    def _set_at_the_end(self, attribute: str, expression: str, of: Piece, needed: list[Piece]) -> None:
        """Gives a class attribute the value that it had when all definitions were made."""
        source = f"{attribute} = {expression}\n"
        self.add(Piece(of.text, of.line, source, of.text.lines[of.line - 1], is_last=True, now=needed))

    def _see_attributes(self, statement: Statement, value: object, piece: Piece) -> None:
        """What later statements have set on it, as ``Config.rate = 2`` or ``Net.forward = own``."""
        assert isinstance(statement.node, Definition)
        name = statement.node.name
        if self.space.live.get(name) is not value:
            return
        unbound = {one: self.space.user_of(name, statement) for one in attributes_added(statement.node, value)}
        for attribute, by in {**unbound, **self.space.attributes_set(name, statement)}.items():
            held = vars(value).get(attribute, ABSENT) if hasattr(value, "__dict__") else ABSENT
            if held is ABSENT:
                self.collection.faults.append(
                    f"{by.place()}: {attribute!r} of {name!r} cannot be seen any more. Set it in the definition itself"
                )
                continue
            written = self.write(held, by.text, by.first, is_named=False)
            if isinstance(written, NoValueError):
                if attribute in unbound and attribute in set_within(statement.node):
                    continue  # its own methods make it where it lacks
                todo = remedy(attribute, held, f"Set it inside {self.collection.function}")
                self.collection.faults.append(
                    f"{by.place()}: {attribute!r} of {name!r} is {written}; what is set on a function or a class "
                    f"travels as its value, which may be made of {ALLOWED}. {todo}"
                )
                continue
            expression, needed = written
            made = Piece(by.text, by.first, f"{name}.{attribute} = {expression}\n", by.source, statement=by)
            made.now = [piece, *needed]
            self.collection.look_for_secrets(made, by.place())
            self.add(made)
