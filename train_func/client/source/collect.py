"""Collects everything a function uses, name by name: functions and classes by their text, all else by value."""

import ast
import copy
import functools
import re
import sys
from collections.abc import Callable, Iterable, MutableMapping, MutableSequence, MutableSet
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType

from train_func.client.source.cells import (
    ABSENT,
    Space,
    Statement,
    Text,
    is_same_literal,
    literal,
    parse,
    public_names,
)
from train_func.client.source.changes import Change, change_since, changes, set_elsewhere, set_on, sets
from train_func.client.source.definitions import (
    changed_names,
    computed_values,
    empty_of,
    is_edited,
    is_plain_body,
    shown_values,
)
from train_func.client.source.modules import LocalModule, Modules
from train_func.client.source.names import OF_A_MODULE, Definition, Import, uses_of
from train_func.client.source.pieces import Expression, Piece, closure
from train_func.client.source.refusals import (
    BUILTINS,
    IPYTHON_ONLY,
    MAX_BYTES,
    ipython_fault,
    machine_fact,
    outdated_fault,
    size_fault,
    undefined_fault,
    value_fault,
)
from train_func.client.source.values import REFILL, NoValueError, Writer, is_own_object, is_type
from train_func.errors import SourceRefused


class Collection:
    """Collects the needs of the function of ``statement``; ``faults`` lists every reason why it cannot travel."""

    def __init__(
        self, space: Space, statement: Statement, function: object, is_there: Callable[[str], bool], also: Iterable[str]
    ) -> None:
        assert isinstance(statement.node, Definition)
        self.space = space
        self.name = statement.node.name
        self.module_name = str(space.live.get("__name__", "__main__"))
        self.modules = Modules(self.module_name, is_there)
        self.faults: list[str] = []
        self.pieces: list[Piece] = []

        def helper(name: str, text: str) -> str:
            return self._alias(name, text, functools.partial(self._helper_piece, text)).name

        self._writer = Writer(self._reference, self._module, helper, (statement.text, statement.first))
        self._of_name: dict[str, list[Piece]] = {}
        self._of_node: dict[ast.stmt, Piece] = {}
        self._of_alias: dict[object, Piece] = {}  # which give names to what values need
        self._containers: list[tuple[str, Piece, ast.expr | None]] = []  # where values are that code may fill
        self._imported: list[tuple[str, object, str]] = []  # what import statements gave, and where they stand
        if space.is_outdated(function):
            self.faults.append(outdated_fault(self.name, statement.text.origin))
        self.root = self._statement(statement, function)
        self._of_name[self.name] = [self.root]
        for name in also:
            self.modules.add(parse(f"import {name}"), statement.text)
        for piece in self.pieces:  # to which what it looks up is added
            self._look_up(piece)
        for module in self.modules.local.values():
            self._check(module)
        if not self.faults:
            self._finish()

    def _add(self, piece: Piece) -> Piece:
        self.pieces.append(piece)
        return piece

    def _look_up(self, piece: Piece) -> None:
        if piece.node is None:
            return
        self.modules.add(ast.Module([piece.node], []), piece.text, self.space.package)
        while self.modules.of_own:
            imported, text, line = self.modules.of_own.pop()
            for name in public_names(self.space.live) if imported == "*" else [imported]:
                self.root.later += self._need(name, text, line, None)
        uses = uses_of(piece.node, self.space.flags)
        for names, needed in (
            (uses.now, piece.names),
            (uses.later, piece.later),
            (uses.maybe, piece.later),
            (uses.hints, piece.later),
        ):
            num_faults = len(self.faults)
            for name, line in sorted(names.items(), key=lambda item: (item[1], item[0])):
                known = uses.local_names if names is not uses.maybe else None
                needed += [other for other in self._need(name, piece.text, line, known) if other is not piece]
            if names is uses.hints:
                del self.faults[num_faults:]

    def _check(self, module: LocalModule) -> None:
        """Adds a fault for each value in a local module, or an import of it, that differs from its file."""
        space = module.space
        values = [(name, value, module.text.origin) for name, value in space.live.items()] + self._imported
        for name, value, place in values:
            if isinstance(value, FunctionType | type) and value.__module__ == module.name:
                made_by = space.definition_of(value)
                if space.is_outdated(value) or (made_by and is_edited(made_by.node, value)):
                    self.faults.append(outdated_fault(name, place))
        trees = [local.text.tree for local in self.modules.local.values()]  # which are imported there as here
        changing = set[str]().union(*map(changed_names, trees), *map(set_elsewhere, trees))
        replaced = [path for path in module.replaced() if path.rpartition(".")[2] not in changing]
        self.faults += [outdated_fault(path, module.text.origin) for path in replaced]
        constants = {name: (value, statement) for statement, name, value in module.constants()}
        changed = [
            (name, statement.place())
            for name, (value, statement) in constants.items()
            if name not in changing and not is_same_literal(value, space.live.get(name, value))
        ]
        for statement in (
            candidate for candidate in self.space.statements if not isinstance(candidate.node, Definition)
        ):
            for name in set_on(module.name, statement.node, self.space.live):
                if name not in constants and name not in replaced:  # its file does not say what it was
                    changed.append((name, statement.place()))
        for name, place in changed:
            self.faults.append(
                f"{place}: {name!r} of {module.name!r} holds another value now, and a worker imports its file as it "
                f"is. Set it inside {self.name}, or give it by Run(parameters={{...}})"
            )

    def _need(self, name: str, text: Text, line: int, known: Iterable[str] | None = ()) -> list[Piece]:
        """Returns the pieces that bind ``name``, which is looked up in that line.

        ``known``: names to suggest in place of a misspelt one; None if it may be absent.
        """
        if name in OF_A_MODULE:
            return []
        if name not in self._of_name:
            self._of_name[name], num_faults = [], len(self.faults)
            self._of_name[name] = self._find(name, text, line, known)
            if len(self.faults) > num_faults:
                del self._of_name[name]  # and the next place that uses the name is accused as well
                if known is None and (name in IPYTHON_ONLY or name not in self.space.live):
                    del self.faults[num_faults:]
                return []
        return self._of_name[name]

    def _find(self, name: str, text: Text, line: int, known: Iterable[str] | None) -> list[Piece]:
        binder = self.space.binder(name)
        if name not in self.space.live:
            is_conditional = binder and isinstance(binder.node, ast.If | ast.Try | ast.Match | ast.With)
            if name not in BUILTINS and not is_conditional:
                self.faults.append(
                    undefined_fault(name, text.place(line), [*(known or ()), *self.space.live, *BUILTINS])
                )
            return []
        if name in BUILTINS and self.space.is_ipython_s(name):
            return []
        value = self.space.live[name]
        if binder and self.space.is_import_of(binder.node, name):
            self._imported.append((name, value, binder.place()))
            return [self._statement(imported) for imported in self.space.imports_of(name, binder)]
        if statement := self._definition(name, value, binder):
            if self.space.is_outdated(value) or self.space.is_moved(value):
                self.faults.append(outdated_fault(name, statement.text.origin))
                return []
            return [self._statement(statement, value)]
        if isinstance(value, ModuleType):
            at = (binder.text, binder.first) if binder else (text, line)
            return [self._add(self._import(value.__name__, name, *at))]
        if name in IPYTHON_ONLY or (binder is None and name.startswith("_") and not self.space.file):
            self.faults.append(ipython_fault(name, text.place(line)))
            return []
        return self._value(name, value, binder, text, line)

    def _definition(self, name: str, value: object, binder: Statement | None) -> Statement | None:
        """Returns the statement that travels verbatim for ``name``."""
        statement = self.space.definition_of(value)
        if statement is None and binder is not None:
            is_no_data = callable(value) or type(value).__module__ != "builtins"
            if isinstance(binder.node, Definition):
                return binder if is_no_data else None  # what a decorator made
            expression = getattr(binder.node, "value", None)
            is_lambda = isinstance(value, FunctionType) and isinstance(expression, ast.Lambda) and not value.__closure__
            is_own = not isinstance(value, type) or value.__module__ == self.module_name
            is_made = is_own and is_type(value) and isinstance(expression, ast.expr)  # namedtuple("Point", "x y")
            is_alias = hasattr(ast, "TypeAlias") and isinstance(binder.node, ast.TypeAlias)
            return binder if is_alias or is_made or is_lambda else None
        if statement is None or statement.name != name:
            return None
        classes = [
            candidate
            for candidate in statement.text.outer
            if isinstance(candidate.node, ast.ClassDef) and candidate.name == name
        ]
        if len(classes) > 1 and statement in classes:  # of branches, that which says most of what the class holds
            statement = min(reversed(classes), key=lambda candidate: self._num_differences(candidate, value))
        is_wrapped = (
            isinstance(value, FunctionType) and value.__closure__ and (not binder or binder.node is not statement.node)
        )
        return None if is_wrapped and not statement.decorators else statement

    def _num_differences(self, statement: Statement, value: object) -> int:
        computed = computed_values(statement.node, value, self.space)
        return len([*computed, *changes(statement.node, value, self.space)])

    def _import(self, module: str, alias: str, text: Text, line: int) -> Piece:
        source = f"import {module} as {alias}\n"
        return Piece(text, line, source, source, node=parse(source).body[0])

    def _value(self, name: str, value: object, binder: Statement | None, text: Text, line: int) -> list[Piece]:
        text, line = (binder.text, binder.first) if binder else (text, line)
        num_faults = len(self.faults)
        expression = self._expression(name, value, ast.Name(name, ast.Load()), text, line)
        if expression is None and binder and isinstance(binder.node, Import) and is_type(value):
            del self.faults[num_faults:]  # of a local module: a worker imports it
            return [self._statement(binder)]
        if expression is None:
            return []
        piece = self._add(self._assignment(name, expression, text, line, binder))
        self._containers.append((name, piece, None))
        return [piece]

    def _expression(self, name: str, value: object, node: ast.AST, text: Text, line: int) -> Expression | None:
        """Returns the expression of a value that ``node`` has computed; None, with a fault, if it cannot travel."""
        if fact := machine_fact(node, self.space, value if isinstance(node, ast.Name) else None):
            self.faults.append(
                f"{text.place(line)}: {name!r} depends on this machine or process ({fact}), and a worker has "
                f"another one. Compute it inside {self.name}"
            )
            return None
        try:
            return self._writer.expression(value, text, line)
        except NoValueError as error:
            binder = self.space.binder(name)
            is_imported = binder is not None and isinstance(binder.node, Import)
            self.faults.append(value_fault(name, text.place(line), error, value, self.name, is_imported=is_imported))
            return None

    def _assignment(self, path: str, expression: Expression, text: Text, line: int, by: Statement | None) -> Piece:
        """Returns the piece that binds a name, or an attribute of one, to a value."""
        original = by.source if by else f"{path} = ...\n"
        return Piece(text, line, original, f"{path} = ", "\n", statement=by, values={None: expression}, name=path)

    # Statements that travel as they are, but for the values of their defaults and attributes.

    def _statement(self, statement: Statement, value: object = ABSENT) -> Piece:
        """Returns the piece of a statement; ``value``: the object that it has defined."""
        if statement.node in self._of_node:
            return self._of_node[statement.node]
        node = statement.node
        piece = Piece(statement.text, statement.first, statement.source, node=node, statement=statement)
        self._of_node[node] = piece
        for base in (*value.__bases__, type(value)) if isinstance(value, type) else ():
            if base.__module__ == self.module_name and not self._is_current(base, base.__qualname__):
                self.faults.append(
                    f"{statement.place()}: {base.__qualname__!r} was bound again after this was defined. Run this cell "
                    "again, or give one of the two another name"
                )
        is_lambda = isinstance(getattr(node, "value", None), ast.Lambda)
        self._replace_values(piece, node.value if is_lambda else node, value)  # type: ignore[attr-defined]
        self._add(piece)
        if change := change_since(self.space, statement, piece.node, value):
            self.faults.append(
                f"{statement.place()}: a worker executes this again, and {change[0]!r}, which it uses, has changed "
                f"since, by {change[1].place()}. Run this cell again, or give one of the two another name"
            )
        name = statement.name
        if name and self.space.live.get(name) is value:
            for edit in [*changes(node, value, self.space)]:
                self._attribute(edit, statement, piece)
            piece.later += [self._statement(registration) for registration in self.space.registrations(name, statement)]
        return piece

    def _replace_values(self, piece: Piece, node: ast.AST, value: object) -> None:
        """Replaces the expressions that were computed when ``node`` was executed by their values."""
        for computed in computed_values(node, value, self.space):
            expression = self._expression(
                computed.name, computed.value, computed.node, piece.text, computed.node.lineno
            )
            if expression is not None:
                piece.values[computed.node] = expression
                if computed.attribute:
                    self._containers.append((computed.attribute, piece, computed.node))
        if piece.node:
            replaced = {id(inner): ast.copy_location(ast.Constant(None), inner) for inner in piece.values if inner}
            piece.node = copy.deepcopy(piece.node, replaced)

    def _attribute(self, change: Change, statement: Statement, piece: Piece) -> None:
        """Adds an attribute that later statements have set on a definition, as ``Config.rate = 2``."""
        path, value = change.path, change.value
        attribute = path.rpartition(".")[2]
        uses = [use for use in self.space.statements if re.search(rf"\b{re.escape(attribute)}\b", use.source)]
        setters = [use for use in uses if use.comes_after(statement) and sets(use.node, attribute)]
        if change.is_made and not (setters if value is ABSENT else {*uses} - {statement}):
            return
        inner = [Statement(statement.text, change.node)] if change.node else []
        by = (setters or inner or [use for use in uses if use.comes_after(statement)] or [statement])[-1]
        if value is ABSENT:
            self._add(Piece(by.text, by.first, by.source, f"del {path}\n", statement=by, names=[piece]))
        else:
            num_faults = len(self.faults)
            node = ast.Constant(None) if isinstance(by.node, Definition) else getattr(by.node, "value", by.node)
            expression = self._expression(path, value, node, by.text, by.first)
            if expression and expression.text() != path:
                self._add(self._assignment(path, expression, by.text, by.first, by)).names.append(piece)
            elif not setters and (change.is_made or sets(statement.node, attribute)):
                del self.faults[num_faults:]  # it is made again by its own code
            elif expression or (setters and change.node):
                what = "to what travels neither by a name nor as a value. Write it into the definition"
                self.faults[num_faults:] = [f"{by.place()}: {path!r} was bound again after its definition, {what}"]

    # What the expressions of values look up.

    def _reference(self, value: object) -> str | None:
        """Returns the expression that names ``value``, a function or a class, or None."""
        if value is type(None):
            return f"{self._reference(type)}(None)"
        owner = value.__self__ if isinstance(value, MethodType | BuiltinFunctionType) else None
        if isinstance(owner, type) and (named := self._reference(owner)):
            return f"{named}.{value.__name__}"  # type: ignore[attr-defined]  # a class method
        is_function = isinstance(value, FunctionType) and value.__globals__ is self.space.live
        name = str(getattr(value, "__qualname__", ""))
        is_written_here = getattr(value, "__module__", None) == self.module_name
        is_decorated = is_written_here and self.space.live.get(name, ABSENT) is value
        if is_function or is_decorated or (is_written_here and isinstance(value, type)):
            if isinstance(value, FunctionType) and name.endswith("<lambda>"):
                return self._lambda(value)
            return self._need_own(value, name)
        homes = [
            getattr(owner, "__module__", None) for owner in (value, getattr(value, "__objclass__", None), type(value))
        ]
        homes.append(getattr(owner, "__name__", None))
        # The qualified name of torch.sigmoid is one of a class that no module has.
        paths = dict.fromkeys(getattr(value, name, None) for name in ("__qualname__", "__name__"))
        for home in (home for home in homes if isinstance(home, str) and home != "__main__"):
            module = sys.modules.get(home)
            path = next(
                (path for path in paths if isinstance(path, str) and _look_up_path(module, path) is value), None
            )
            if path and not home.startswith("train_func.client"):  # of which nothing works in a worker
                top = path.partition(".")[0]
                builtin = getattr(module, top)
                is_seen = home == "builtins" and self.space.live.get(top, builtin) is builtin
                return path if is_seen else f"{self._module(home)}.{path}"
        return None

    def _need_own(self, value: object, path: str) -> str | None:
        top = path.partition(".")[0]
        pieces = self._need(top, *self._writer.at) if self._is_current(value, path) else []
        if not pieces and self._is_current(value, path):  # while the class that holds it is collected
            statement = self.space.definition_of(self.space.live.get(top))
            pieces = [piece for piece in self.pieces if statement and piece is self._of_node.get(statement.node)]
        self._writer.needed += pieces
        return path if pieces else None

    def _is_current(self, value: object, path: str) -> bool:
        """Returns whether ``path`` holds the value, or an equal class, if its cell was executed again unchanged."""
        top, _, rest = path.partition(".")
        binders = self.space.binders.get(top, [])
        current = self.space.live.get(top)
        if _look_up_path(current, rest) is value:
            return True
        is_again = len({binder.source for binder in binders}) == 1 and isinstance(binders[0].node, ast.ClassDef)
        if not is_again or not isinstance(value, type) or rest:
            return is_again and isinstance(value, type)
        made_by = [self.space.definition_of(version) for version in (value, current)]
        values = [
            shown_values(definition.node, each)
            for definition, each in zip(made_by, (value, current), strict=True)
            if definition
        ]
        return len(values) > 1 and values[0] == values[1]

    def _lambda(self, value: FunctionType) -> str | None:
        written = None if value.__closure__ else self.space.lambda_of(value.__code__)
        if written is None:
            return None
        text, node = written
        statement = Statement(text, ast.copy_location(ast.Expr(node), node))

        def make(alias: str) -> Piece:
            line = text.lines[node.lineno - 1]
            piece = Piece(text, node.lineno, line, f"{alias} = (", ")\n", statement.node, statement)
            self._replace_values(piece, node, value)
            return piece

        return self._alias("_lambda", id(value), make).name

    def _module(self, name: str) -> str:
        alias = "_" + name.replace(".", "_")
        return self._alias(alias, name, lambda alias: self._import(name, alias, *self._writer.at)).name

    def _helper_piece(self, text: str, alias: str) -> Piece:
        cell, line = self._writer.at
        return Piece(cell, line, cell.lines[line - 1], text.format(name=alias))

    def _alias(self, name: str, key: object, make: Callable[[str], Piece]) -> Piece:
        """Returns the piece that ``make`` makes at the first use, under a name that nothing else has."""
        if key not in self._of_alias:
            used = (
                {alias.name for alias in self._of_alias.values()} | self.space.binders.keys() | self.space.live.keys()
            )
            while name in used:
                name += "_"
            self._of_alias[key] = self._add(make(name))
            self._of_alias[key].name = name
        self._writer.needed.append(self._of_alias[key])
        return self._of_alias[key]

    # When all is known.

    def _finish(self) -> None:
        """Names the objects that are used in several places, and writes all pieces."""
        for piece in sorted(self.pieces, key=lambda piece: piece.name):
            expression = piece.values.get(None)
            if expression in self._writer.shared and expression.piece is None and "." not in piece.name:
                expression.piece = piece
        for shared in self._writer.shared:
            if shared.num_uses > 1 and shared.piece is None:
                make = functools.partial(
                    self._assignment, expression=shared, text=shared.at[0], line=shared.at[1], by=None
                )
                shared.piece = self._alias("_shared", shared, make)
        for name, pieces in self._of_name.items():  # of imports that bind one name the newest comes last
            siblings = [
                self._of_node[binder.node]
                for binder in self.space.binders.get(name, ())
                if binder.node in self._of_node
            ]
            for piece in pieces:
                if isinstance(piece.node, Import):
                    piece.names += [sibling for sibling in siblings if sibling not in pieces]
        for piece in self.pieces:
            piece.link()
        self._fill_registries()
        size = 0
        for piece in self.pieces:
            piece.link()
            piece.write()
            size += len(piece.source.encode())
            if size > MAX_BYTES:
                raise SourceRefused(size_fault(piece.place()))

    def _fill_registries(self) -> None:
        """Sets the containers that definitions may fill to their values after all definitions."""
        executed = closure(
            needed for piece in self.pieces if isinstance(piece.node, Definition) for needed in piece.now
        )
        changed = {name for piece in executed if piece.node for name in changed_names(piece.node)}
        for path, piece, key in self._containers:
            expression = piece.values[key]
            value = expression.value
            made_with = closure(needed for holder in expression.needed(expression.piece) for needed in holder.now)
            is_run = isinstance(piece.node, ast.ClassDef) and not is_plain_body(piece.node)
            is_filled = piece in made_with or path.rpartition(".")[2] in changed or is_run
            is_container = isinstance(value, MutableMapping | MutableSequence | MutableSet)
            if is_filled and (is_container or (is_own_object(value) and hasattr(value, "__dict__"))):
                verb = "update" if hasattr(value, "update") else "extend"
                head, tail, names = f"{path}.clear()\n{path}.{verb}(", ")\n", [piece]
                if not is_container:
                    head, tail = f"{path}.__dict__.update(", ".__dict__)\n"
                elif is_own_object(value):
                    names.append(self._alias("_refilled", REFILL, functools.partial(self._helper_piece, REFILL)))
                    head = f"{names[-1].name}({path}, "
                at_end = Piece(piece.text, piece.line, piece.original, head, tail, is_last=True, names=names)
                at_end.values[None] = expression
                self.pieces.append(at_end)
                if is_run and key and literal(key) is not ABSENT and expression.piece is None:
                    del piece.values[key]  # the class body fills what it begins with
                elif piece in made_with:  # and nothing has registered yet
                    piece.values[key] = self._writer.expression(empty_of(value), piece.text, piece.line)


def _look_up_path(owner: object, path: str) -> object:
    for name in filter(None, path.split(".")):
        owner = getattr(owner, name, None)
    return owner
