"""Everything a function uses, found name by name: functions and classes by their text, all else by its value."""

import ast
import sys
from collections import deque
from collections.abc import Callable, Iterable
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType

from train_func.client.source.cells import ABSENT, Space, Statement, Text, absolute, parse, parse_statement
from train_func.client.source.definitions import (
    Given,
    attributes_added,
    bound_since,
    changed_within,
    empty_of,
    given_in,
    is_same_class,
)
from train_func.client.source.faults import (
    BUILTINS,
    IPYTHON_ONLY,
    MAX_BYTES,
    faults_of_module,
    no_value,
    of_a_machine,
    of_ipython,
    of_this_machine,
    outdated,
    too_large,
    undefined,
)
from train_func.client.source.modules import Modules, is_installed
from train_func.client.source.names import OF_A_MODULE, Definition, calls, chains, imports, root_of, uses_of
from train_func.client.source.pieces import Piece, closure
from train_func.client.source.values import NoValueError, Writer, is_mutable, is_own_object, is_type
from train_func.errors import SourceRefused


class Collection:
    """What the function of ``statement`` needs; ``faults`` lists every reason why it cannot travel."""

    def __init__(
        self, space: Space, statement: Statement, function: object, is_there: Callable[[str], bool], also: Iterable[str]
    ) -> None:
        assert isinstance(statement.node, Definition)
        self.space = space
        self.name = statement.node.name
        self.module_name = str(space.live.get("__name__", "__main__"))
        self.modules = Modules(self.module_name, is_there)
        self.writer = Writer(self)
        self.faults: list[str] = []
        self.pieces: list[Piece] = []
        self._of_name: dict[str, list[Piece]] = {}
        self._of_statement: dict[int, Piece] = {}
        self._values: dict[str, Piece] = {}
        self._name_of: dict[int, str] = {}
        self._generated: dict[str, tuple[str, Piece]] = {}
        self._waiting: deque[Piece] = deque()
        self._size = 0
        self._user = Piece(statement.text, statement.first, str, "")  # of the expression that is written
        self._needed: list[Piece] = []
        self._is_known = False
        self._imported: list[tuple[str, object, str]] = []  # what import statements gave, and where they stand
        if space.is_outdated(function):
            self.faults.append(outdated(self.name, statement.text.origin))
        self.root = self._statement(statement, function)
        self._of_name[self.name] = [self.root]
        for name in also:
            self.modules.add(parse(f"import {name}"), statement.text)
        self._follow()
        if not self.faults:
            self._name_values()

    def _follow(self) -> None:
        """Looks at all that travels; pieces and local modules lead to more of them."""
        seen: set[str] = set()
        while self._waiting or self.modules.local.keys() - seen:
            while self._waiting:
                self._look_up(self._waiting.popleft())
            for name in [one for one in self.modules.local if one not in seen]:
                seen.add(name)
                module = self.modules.local[name]
                froms = [node for node in ast.walk(module.text.tree) if isinstance(node, ast.ImportFrom)]
                for node in (one for one in froms if absolute(one, module.package) == self.module_name):
                    for alias in node.names:
                        self._need(alias.name, Piece(module.text, node.lineno, str, ""), node.lineno)
        for module in self.modules.local.values():
            self.faults += faults_of_module(module, self._imported, self.name)

    def _name_values(self) -> None:
        """Writes all values again, now that it is known which objects have names, and which several values hold."""
        self._is_known = True
        for name in sorted(self._values):
            self._name_of.setdefault(id(self.space.live[name]), name)
        for is_counting in (True, False):
            self.writer.begin(is_counting=is_counting)
            for piece in [*self.pieces]:
                self._write(piece)
        self._settle()

    # What the pieces look up.

    def _add(self, piece: Piece) -> Piece:
        self._write(piece)
        self.pieces.append(piece)
        self._waiting.append(piece)
        self._size += len(piece.source.encode())
        if self._size > MAX_BYTES:
            raise SourceRefused(too_large(piece.place()))
        return piece

    def _write(self, piece: Piece) -> None:
        """Gives a piece its lines, and what the values in it need."""
        user, needed = self._user, self._needed
        self._user, self._needed = piece, []
        try:
            piece.source = piece.write()
            piece.now += [one for one in dict.fromkeys(self._needed) if one is not piece and one not in piece.now]
        finally:
            self._user, self._needed = user, needed

    def _look_up(self, piece: Piece) -> None:
        if piece.node is None:
            return
        self.modules.add(ast.Module([piece.node], []), piece.text, self.space.package)
        piece.uses = uses_of(piece.node, self.space.flags)
        kinds = ((piece.uses.now, piece.now), (piece.uses.later, piece.later), (piece.uses.maybe, piece.later))
        for names, needed in kinds:
            for name, line in sorted(names.items(), key=lambda item: (item[1], item[0])):
                found = self._need(name, piece, line, is_certain=names is not piece.uses.maybe)
                if piece in found and needed is piece.now and name not in BUILTINS:
                    self.faults.append(
                        f"{piece.place(line)}: {name!r} is used here with the value that it had before this statement "
                        "bound it again; give one of the two another name"
                    )
                needed += [one for one in found if one is not piece]
        for dotted in chains(piece.node):
            binders = self.space.binders.get(dotted.partition(".")[0], ()) if dotted in sys.modules else ()
            statements = [one for one in binders if isinstance(one.node, ast.Import) and imports(one.node, dotted)]
            piece.later += [self._statement(one) for one in statements[-1:]]

    def _need(self, name: str, user: Piece, line: int, *, is_certain: bool = True) -> list[Piece]:
        """The pieces that bind ``name``, which ``user`` looks up in ``line``."""
        if name in OF_A_MODULE or any(name == alias for alias, _ in self._generated.values()):
            return []
        if name not in self._of_name:
            self._of_name[name] = []
            num_faults = len(self.faults)
            pieces = self._find(name, user, line, is_certain=is_certain)
            if pieces is None or (not is_certain and len(self.faults) > num_faults):
                del self._of_name[name]  # and the next place that uses the name is accused as well
                if not is_certain:
                    del self.faults[num_faults:]
                return []
            self._of_name[name] = pieces
        return self._of_name[name]

    def _find(self, name: str, user: Piece, line: int, *, is_certain: bool) -> list[Piece] | None:
        binder = self.space.binder(name)
        if name not in self.space.live:
            if name in BUILTINS:
                return []
            if binder is None or not isinstance(binder.node, ast.If | ast.Try | ast.Match | ast.With):
                if is_certain:
                    known = [*sorted(user.uses.own), *self.space.live, *sorted(BUILTINS)]
                    self.faults.append(undefined(name, user.place(line), known))
                return None
            return []  # a block that went the other way, and the use may be as conditional
        value = self.space.live[name]
        if binder and self.space.gives(binder.node, name) and not self._is_value_of_local(binder, value):
            piece = self._statement(binder)
            self._imported.append((name, value, binder.place()))
            return [piece]
        if (definition := self._definition(name, value, binder)) is not None:
            return [definition]
        if isinstance(value, ModuleType):
            return [self._import(value.__name__, name, binder)]
        if name in IPYTHON_ONLY or (binder is None and name.startswith("_") and not self.space.file):
            self.faults.append(of_ipython(name, user.place(line)))
            return None
        return self._value(name, value, binder, user, line)

    def _is_value_of_local(self, binder: Statement, value: object) -> bool:
        """Whether it is what ``from module import RATE`` gave of a local module, which may compute it again there."""
        if (
            is_type(value)
            or isinstance(value, FunctionType | ModuleType)
            or not isinstance(binder.node, ast.ImportFrom)
        ):
            return False
        home = sys.modules.get(absolute(binder.node, self.space.package))
        if home is None or is_installed(getattr(home, "__file__", None)):
            return False
        try:
            return bool(self._written(value, binder.text, binder.first))
        except NoValueError:
            return False  # and a worker imports it

    def _definition(self, name: str, value: object, binder: Statement | None) -> Piece | None:
        statement = self.space.located(value)
        is_no_data = callable(value) or type(value).__module__ != "builtins"
        if statement is None and binder and isinstance(binder.node, Definition) and is_no_data:
            statement = binder  # what a decorator made
        if statement is None:
            is_lambda = isinstance(value, FunctionType) and value.__name__ == "<lambda>" and not value.__closure__
            node = getattr(binder.node, "value", None) if binder else None
            is_alias = binder is not None and hasattr(ast, "TypeAlias") and isinstance(binder.node, ast.TypeAlias)
            is_own = not isinstance(value, type) or value.__module__ == self.module_name
            is_made = is_own and is_type(value) and isinstance(node, ast.expr)
            if binder and (is_alias or is_made or (is_lambda and isinstance(node, ast.Lambda))):
                return self._statement(binder, value)  # Point = namedtuple("Point", "x y")
            return None
        assert isinstance(statement.node, Definition)
        is_wrapped = isinstance(value, FunctionType) and bool(value.__closure__) and binder is not statement
        if is_wrapped and not statement.node.decorator_list:
            return None  # made of it by a call
        if statement.node.name == name:
            return self._statement(statement, value)
        if self.space.live.get(statement.node.name) is not value:
            return None
        named = self._need(statement.node.name, self._user, statement.first)
        return self._named(name, statement.node.name, binder or statement) if named else None

    def _named(self, name: str, other: str, statement: Statement) -> Piece:
        """Another name of something."""
        line = f"{name} = {other}\n"
        piece = Piece(statement.text, statement.first, lambda: line, statement.source, statement=statement)
        piece.now += self._of_name[other]
        return self._add(piece)

    def _import(self, module: str, alias: str, binder: Statement | None = None) -> Piece:
        user, source = self._user, f"import {module} as {alias}\n"
        text, line = (binder.text, binder.first) if binder else (user.text, user.line)
        return self._add(Piece(text, line, lambda: source, source, parse(source).body[0]))

    def _value(self, name: str, value: object, binder: Statement | None, user: Piece, line: int) -> list[Piece] | None:
        text, first = (binder.text, binder.first) if binder else (user.text, line)
        if fact := of_this_machine(ast.Name(name, ast.Load()), self.space, value):
            self.faults.append(of_a_machine(name, text.place(first), fact, self.name))
            return None
        original = binder.source if binder else f"{name} = ...\n"
        piece = Piece(text, first, lambda: self._assignment(name, value), original, statement=binder)
        try:
            self._values[name] = self._add(piece)
        except NoValueError as error:
            self._values.pop(name, None)
            self.faults.append(no_value(name, text.place(first), error, value, self.name))
            return None
        return [piece]

    def _assignment(self, name: str, value: object) -> str:
        """The line of a name; of several names of one object the first has its value."""
        first = self._name_of.get(id(value), name)
        if first != name and is_mutable(value):
            self._needed.append(self._values[first])
            return f"{name} = {first}\n"
        return f"{name} = {self.writer.text(value, is_named=True)}\n"

    def _settle(self) -> None:
        """What definitions fill while they are made, as a decorator does a registry, gets its value when all are."""
        reached = closure(one for piece in self.pieces if isinstance(piece.node, Definition) for one in piece.now)
        run = [one.node for one in reached if isinstance(one.node, Definition)]
        changed = {name for node in run for name in changed_within(node)}
        changed |= {root_of(getattr(one, "func", one)) or "" for node in run for one in node.decorator_list}
        for name in sorted(changed & self._values.keys()):
            piece, value = self._values[name], self.space.live[name]
            expression = piece.source.removeprefix(f"{name} = ").removesuffix("\n")
            fill = next((one for one in ("update", "extend") if hasattr(value, one) and hasattr(value, "clear")), "")
            is_own = is_own_object(value)
            filled = f"{name}.__dict__.update({expression}.__dict__)\n" if is_own else f"{name} = {expression}\n"
            filled = f"{name}.clear()\n{name}.{fill}({expression})\n" if fill else filled
            needed = [piece, *piece.now]
            self.pieces.append(Piece(piece.text, piece.line, str, piece.original, None, None, True, filled, now=needed))
            if fill or is_own:
                piece.source, piece.now = f"{name} = {self.writer.text(empty_of(value))}\n", []

    # Statements that travel as they are, but for the values of their defaults and attributes.

    def _statement(self, statement: Statement, value: object = ABSENT) -> Piece:
        """The piece of a statement; ``value``: what it has defined."""
        if id(statement) in self._of_statement:
            return self._of_statement[id(statement)]
        texts: dict[ast.expr, Callable[[], str]] = {}
        write = lambda: statement.with_values({node: text() for node, text in texts.items()})  # noqa: E731
        piece = Piece(statement.text, statement.first, write, statement.source, statement.node, statement)
        self._of_statement[id(statement)] = piece
        if isinstance(statement.node, Definition):
            self.faults += bound_since(statement, self.space)
        for given in given_in(statement.node, value):
            self._see(given, statement, piece, texts)
        self._add(piece)
        if texts:
            piece.node = parse_statement(piece.source, statement)
        name = getattr(statement.node, "name", "")
        if name and self.space.live.get(name) is value:
            for attribute in attributes_added(statement.node, value):
                self._see_attribute(f"{name}.{attribute}", vars(value)[attribute], statement, piece)
            piece.later += [self._statement(one) for one in self.space.registered_with(name, statement)]
        return piece

    def _see(self, given: Given, statement: Statement, piece: Piece, texts: dict[ast.expr, Callable[[], str]]) -> None:
        """Lets a value take the place of the expression that computed it."""
        place, value = statement.place(given.node.lineno), given.value
        is_computed = given.is_computed(self.space.live)
        if value is ABSENT and is_computed and given.is_default and calls(given.node):
            self.faults.append(
                f"{place}: the default of {given.name!r} is computed by a call, and a decorator hides its value; "
                "bind it to a name above, or compute it inside the function"
            )
        is_annotation = is_type(value) and not isinstance(value, type)
        if value is ABSENT or given.is_code or is_annotation or not (is_computed or given.is_changed):
            return
        if fact := of_this_machine(given.node, self.space):
            self.faults.append(of_a_machine(given.name, place, fact, self.name))
            return
        try:
            text, needed = self._written(value, statement.text, given.node.lineno)
        except NoValueError as error:
            self.faults.append(no_value(given.name, place, error, value, self.name))
            return

        def again() -> str:
            return self.writer.text(value) if self._is_known else text

        is_set = bool(given.attribute) and given.is_changed
        is_filled = bool(given.attribute) and hasattr(value, "clear")  # by the class body, or by subclasses
        if is_filled and not any(isinstance(one.node, Definition) for one in needed):
            is_filled = given.name in changed_within(statement.node)
        if is_filled or is_set:
            original, path = statement.text.lines[given.node.lineno - 1], given.attribute
            write = lambda: f"{path} = {again()}\n"  # noqa: E731
            self._add(Piece(statement.text, given.node.lineno, write, original, is_last=True, now=[piece, *needed]))
        if is_filled and not is_set:
            empty = empty_of(value)
            texts[given.node] = lambda: self.writer.text(empty)
        elif not is_set:
            texts[given.node] = again
            piece.now += needed

    def _written(self, value: object, text: Text, line: int) -> tuple[str, list[Piece]]:
        """The expression of a value of that line, and what it needs."""
        user, needed = self._user, self._needed
        self._user, self._needed = Piece(text, line, str, ""), []
        try:
            return self.writer.text(value), self._needed
        finally:
            self._user, self._needed = user, needed

    def _see_attribute(self, path: str, value: object, statement: Statement, piece: Piece) -> None:
        """What later statements have set on a definition, as ``Config.rate = 2`` or ``Net.forward = own``."""
        name, _, attribute = path.partition(".")
        likely = [one for one in self.space.statements if one.comes_after(statement) and name in one.source]
        by = next((one for one in reversed(likely) if attribute in one.source), next(reversed(likely), statement))
        made = Piece(by.text, by.first, lambda: f"{path} = {self.writer.text(value)}\n", by.source, statement=by)
        made.now.append(piece)
        try:
            self._add(made)
        except NoValueError as error:
            if not any(isinstance(one, ast.Attribute) and one.attr == attribute for one in ast.walk(statement.node)):
                self.faults.append(no_value(path, by.place(), error, value, self.name, "what is set on it"))

    # What the expressions of values look up.

    def reference(self, value: object) -> str | None:
        """The expression that names ``value``, a function or a class, or None."""
        if value is type(None):
            return f"{self.builtin('type')}(None)"
        owner = value.__self__ if isinstance(value, MethodType | BuiltinFunctionType) else None
        if isinstance(owner, type) and (named := self.reference(owner)):
            return f"{named}.{value.__name__}"  # type: ignore[attr-defined]  # a class method
        is_function = isinstance(value, FunctionType) and value.__globals__ is self.space.live
        name = str(getattr(value, "__qualname__", ""))
        is_written_here = getattr(value, "__module__", None) == self.module_name
        is_decorated = is_written_here and self.space.live.get(name, ABSENT) is value
        if is_function or is_decorated or (is_written_here and isinstance(value, type)):
            return self._lambda(value) if name.endswith("<lambda>") else self._own(value, name)
        homes = [getattr(one, "__module__", None) for one in (value, getattr(value, "__objclass__", None), type(value))]
        homes.append(getattr(owner, "__name__", None))
        # The qualified name of torch.sigmoid is one of a class that no module has.
        paths = dict.fromkeys(getattr(value, name, None) for name in ("__qualname__", "__name__"))
        for home in (one for one in homes if isinstance(one, str) and one != "__main__"):
            module = sys.modules.get(home)
            path = next((one for one in paths if isinstance(one, str) and _looked_up(module, one) is value), None)
            if path and not home.startswith("train_func.client"):  # of which nothing works in a worker
                return self.builtin(path) if home == "builtins" else f"{self.module(home)}.{path}"
        return None

    def _own(self, value: object, path: str) -> str | None:
        top, _, rest = path.partition(".")
        held = _looked_up(self.space.live.get(top), rest)
        if held is not value and not is_same_class(held, value):
            return None
        pieces = self._need(top, self._user, self._user.line)
        self._needed += pieces
        return path if pieces else None

    def _lambda(self, value: object) -> str | None:
        assert isinstance(value, FunctionType)
        found = None if value.__closure__ else self.space.lambda_of(value.__code__)
        if found is None:
            return None
        key = f"lambda {id(value)}"
        if key not in self._generated:
            text, node = found
            statement = Statement(text, ast.copy_location(ast.Expr(node), node))
            alias, texts = self._free("_lambda"), dict[ast.expr, Callable[[], str]]()

            def write() -> str:
                source = statement.with_values({one: text() for one, text in texts.items()})
                return f"{alias} = ({source.rstrip()}\n)\n"  # a comment may end it

            piece = Piece(text, node.lineno, write, text.lines[node.lineno - 1])
            self._generated[key] = alias, piece
            for given in given_in(statement.node, value):
                self._see(given, statement, piece, texts)
            self._write(piece)
            piece.node = parse(piece.source).body[0]
            ast.increment_lineno(piece.node, node.lineno - 1)
            self._add(piece)
        return self._use(key)

    def module(self, name: str) -> str:
        """The name of an imported module."""
        key = f"import {name}"
        if key not in self._generated:
            alias = self._free("_" + name.replace(".", "_"))
            self._generated[key] = alias, self._import(name, alias)
        return self._use(key)

    def builtin(self, name: str) -> str:
        """The name of a builtin."""
        return f"{self.module('builtins')}.{name}" if name in self.space.live else name

    def shared(self, value: object) -> str | None:
        """The name of an object that several values hold."""
        if name := self._name_of.get(id(value)):
            self._needed.append(self._values[name])
            return name
        if id(value) not in self.writer.repeated:
            return None
        key, user = f"object {id(value)}", self._user
        if key not in self._generated:
            alias = self._free("_shared")
            write = lambda: f"{alias} = {self.writer.text(value, is_named=True)}\n"  # noqa: E731
            piece = Piece(user.text, user.line, write, user.text.lines[user.line - 1])
            self._generated[key] = alias, piece
            self._add(piece)
        return self._use(key)

    def helper(self, wanted: str, text: str) -> str:
        """The name of a function with that text."""
        if wanted not in self._generated:
            alias = self._free(f"_{wanted}")
            source = text.format(name=alias)
            piece = Piece(self._user.text, self._user.line, lambda: source, source)
            self._generated[wanted] = alias, self._add(piece)
        return self._use(wanted)

    def _use(self, key: str) -> str:
        alias, piece = self._generated[key]
        self._needed.append(piece)
        return alias

    def _free(self, name: str) -> str:
        used = {alias for alias, _ in self._generated.values()} | self.space.binders.keys() | self.space.live.keys()
        while name in used:
            name += "_"
        return name


def _looked_up(owner: object, path: str) -> object:
    for name in filter(None, path.split(".")):
        owner = getattr(owner, name, None)
    return owner
