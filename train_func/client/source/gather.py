"""Everything a function uses, found name by name: the pieces that must travel, and why one of them cannot."""

import ast
import builtins
import difflib
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from train_func.client.source import constants
from train_func.client.source.function import Root
from train_func.client.source.modules import Modules
from train_func.client.source.space import Binding
from train_func.client.source.statements import Definition, Statement
from train_func.client.source.uses import Uses, uses_of
from train_func.errors import SourceRefused

MAX_BYTES = 50_000_000
IPYTHON_ONLY = frozenset({"get_ipython", "display", "In", "Out", "__IPYTHON__"})
BUILTINS = frozenset(dir(builtins)) - IPYTHON_ONLY
OF_A_MODULE = frozenset(
    (
        *("__name__", "__file__", "__doc__", "__package__", "__spec__", "__loader__", "__builtins__", "__path__"),
        *("__annotations__", "__conditional_annotations__", "__cached__", "__debug__", "__class__", "__classdict__"),
        *("__module__", "__qualname__"),
    )
)


@dataclass(eq=False)
class Piece:
    """A statement that travels, with the pieces it needs when it is executed, and when a function of it is called."""

    statement: Statement
    uses: Uses
    now: list["Piece"] = field(default_factory=list)
    later: list["Piece"] = field(default_factory=list)

    @property
    def is_import(self) -> bool:
        """Whether it is nothing but an import."""
        return isinstance(self.statement.node, ast.Import | ast.ImportFrom)


@dataclass
class _Found:
    """The statements behind a name (None when there is no such name), and why they cannot travel."""

    statements: list[Statement] | None
    faults: list[str] = field(default_factory=list)
    unless_within: str = ""  # a fault unless a function that travels binds or changes the name itself

    @property
    def is_faulty(self) -> bool:
        return self.statements is None or bool(self.faults) or bool(self.unless_within)


class Gathering:
    """What ``root`` needs; ``faults`` lists every reason why it cannot travel."""

    def __init__(self, root: Root, is_there: Callable[[str], bool]) -> None:
        self.space = root.space
        self.modules = Modules(is_there)
        self.faults: list[str] = []
        self._pieces: dict[int, Piece] = {}
        self._found: dict[str, list[Statement]] = {root.name: [root.statement]}
        self._missing: list[tuple[str, Piece, int]] = []
        self._unless_within: list[tuple[str, str]] = []
        self._rebound: list[tuple[str, Piece]] = []
        self._size = 0
        self._waiting: deque[Piece] = deque()
        self.root = self._piece(root.statement)
        while self._waiting:
            self._follow(self._waiting.popleft())
        self._keep_order()
        within = {name for piece in self.pieces for name in constants.changed_within(piece.statement.node)}
        self.faults += [fault for name, fault in self._unless_within if name not in within]
        self._accuse_missing(within)

    @property
    def pieces(self) -> list[Piece]:
        """The root first, then in the order they were found."""
        return list(self._pieces.values())

    def _piece(self, statement: Statement) -> Piece:
        if id(statement) not in self._pieces:
            self._size += len(statement.source.encode())
            if self._size > MAX_BYTES:
                raise SourceRefused(too_large(statement.place()))
            piece = Piece(statement, uses_of(statement.node, self.space.flags))
            self._pieces[id(statement)] = piece
            self._waiting.append(piece)
        return self._pieces[id(statement)]

    def _follow(self, piece: Piece) -> None:
        self.modules.add(ast.Module([piece.statement.node], []), piece.statement.text, self.space.package)
        for group, needed_now in ((piece.uses.now, True), (piece.uses.later, False)):
            for name, line in _by_line(group):
                found = self._earlier(name, piece) if needed_now else []
                found = found or self._resolve(name, piece, line, needed_now=needed_now)
                (piece.now if needed_now else piece.later).extend(found)
        for name, line in _by_line(piece.uses.maybe):
            piece.later.extend(self._resolve(name, piece, line, is_certain=False))
        if isinstance(piece.statement.node, Definition) and not piece.statement.is_indented:
            registered = self.space.registered_with(piece.statement.node.name, piece.statement)
            piece.later.extend(self._piece(statement) for statement in registered)

    def _earlier(self, name: str, piece: Piece) -> list[Piece]:
        """The value that the statement saw, when the same cell has bound the name again since."""
        statement = self.space.earlier(name, piece.statement)
        if statement is None:
            return []
        self._rebound.append((name, piece))
        return self._bound_before(name, statement)

    def _bound_before(self, name: str, statement: Statement) -> list[Piece]:
        if not isinstance(statement.node, ast.Import | ast.ImportFrom | Definition):
            self.faults += constants.faults_of(statement, name, self.space.live, is_newest=False)
        return [self._piece(statement)]

    def _include_default(self, name: str, statement: Statement) -> None:
        """``level = 1`` above ``if verbose: level = 2``: the block alone might bind nothing."""
        if isinstance(statement.node, ast.ImportFrom) or constants.always_binds(statement.node, name):
            return
        if default := self.space.before(name, statement):
            self._piece(statement).now += self._bound_before(name, default)
            self._include_default(name, default)

    def _resolve(
        self, name: str, piece: Piece, line: int, *, needed_now: bool = False, is_certain: bool = True
    ) -> list[Piece]:
        if name in OF_A_MODULE:
            return []
        if name not in self._found:
            found = self._look_up(name, piece, line, needed_now=needed_now)
            if found.is_faulty and not is_certain:
                return []
            self.faults += found.faults
            if found.unless_within:
                self._unless_within.append((name, found.unless_within))
            if found.statements is None:
                self._missing.append((name, piece, line))
            if not found.statements and found.is_faulty:
                return []  # and the next place that uses the name is accused as well
            self._found[name] = found.statements or []
            for statement in self._found[name]:
                self._include_default(name, statement)
        dotted = [one for path in _dotted(piece.statement.node, name) for one in self.space.imports_of(path)]
        statements = list(dict.fromkeys([*self._found[name], *dotted])) if self._found[name] else []
        return [self._piece(one) for one in statements]

    def _look_up(self, name: str, piece: Piece, line: int, *, needed_now: bool) -> "_Found":
        if name in self.space.live:
            if binding := self.space.binding(name):
                return self._judge(name, binding)
            if name in BUILTINS:
                return _Found([])
            place = piece.statement.place(line)
            return _Found([], unless_within=_without_statement(name, place, self.space.live[name]))
        if name in BUILTINS:
            return _Found([])
        if conditional := self.space.in_a_block(name):  # not this time, and the use may be as conditional
            return _Found([conditional], constants.faults_of(conditional, name, self.space.live, is_newest=False))
        earlier = self.space.before(name, piece.statement) if needed_now else None
        return _Found([earlier] if earlier else None)

    def _judge(self, name: str, binding: Binding) -> "_Found":
        statement, live = binding.statement, self.space.live
        found = _Found([statement])
        if isinstance(statement.node, ast.Import | ast.ImportFrom):
            return found
        is_definition = isinstance(statement.node, Definition)
        by = self.space.changed_by(name, statement, by_method=not is_definition)
        if by and binding.gives is not True:
            found.faults.append(constants.changed(statement, name, by))
        elif binding.gives is False:
            found.unless_within = constants.changed(statement, name, None)
        elif not is_definition:
            found.faults += constants.faults_of(statement, name, live)
        return found

    def _keep_order(self) -> None:
        """What binds a name again comes after everything that uses its earlier value."""
        for name, user in self._rebound:
            for piece in self.pieces:
                if name in piece.uses.binds and piece.statement.comes_after(user.statement):
                    piece.now.append(user)

    def _accuse_missing(self, within: set[str]) -> None:
        bound = within | {name for piece in self.pieces for name in piece.uses.binds}
        known = [name for name in self.space.live if not name.startswith("_")] + sorted(BUILTINS)
        for name, piece, line in self._missing:
            if name not in bound:
                near = difflib.get_close_matches(name, [*sorted(piece.uses.own), *known], n=1, cutoff=0.75)
                self.faults.append(undefined(name, piece.statement.place(line), near))


def undefined(name: str, place: str, near: list[str]) -> str:
    """The fault of a name that nothing binds."""
    if name in IPYTHON_ONLY:
        return _of_ipython(name, place)
    meant = f"; did you mean {near[0]!r}?" if near else "."
    return (
        f"{place}: {name!r} is not defined: a name must be bound in the function, in an executed cell or its file, "
        f"or be a builtin{meant} Correct it, or define or import it and run that cell before submitting"
    )


def _without_statement(name: str, place: str, value: object) -> str:
    if name in IPYTHON_ONLY or name.startswith("_"):
        return _of_ipython(name, place)
    file = getattr(getattr(value, "__code__", None), "co_filename", None)
    origin = f" (its text is in {file}: import it from there)" if file else " (a magic, exec or globals() made it)"
    return (
        f"{place}: no statement of a cell or of its file binds {name!r}{origin}; only statements travel. "
        "Bind it by an assignment, a def or an import, and run that cell before submitting"
    )


def _of_ipython(name: str, place: str) -> str:
    return (
        f"{place}: {name!r} belongs to IPython (magics and ! commands use it too), and a worker is plain Python. "
        "Leave it out of what the function uses, or put it in a cell of its own"
    )


def too_large(place: str) -> str:
    """The fault of more text than travels."""
    return (
        f"{place}: with this the function and what it uses are more than {MAX_BYTES:,} bytes of text, the most that "
        "travels. Keep data in a file or the store, and read it there"
    )


def _by_line(names: dict[str, int]) -> Iterable[tuple[str, int]]:
    return sorted(names.items(), key=lambda item: (item[1], item[0]))


def _dotted(node: ast.AST, name: str) -> set[str]:
    """Every ``name.a`` and ``name.a.b`` that the statement looks up, in their own order."""
    found = set()
    for inner in ast.walk(node):
        parts: list[str] = []
        while isinstance(inner, ast.Attribute):
            parts.insert(0, inner.attr)
            inner = inner.value
        if parts and isinstance(inner, ast.Name) and inner.id == name:
            found |= {".".join([name, *parts[: n + 1]]) for n in range(len(parts))}
    return found
