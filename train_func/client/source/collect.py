"""Everything a function uses, found name by name: functions and classes by their text, all else by its value."""

import ast
import difflib
import importlib
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

from train_func.client.source.changes import changed_within
from train_func.client.source.faults import MAX_BYTES, outdated, too_large, undefined
from train_func.client.source.function import Root
from train_func.client.source.literals import Secret, secrets_in
from train_func.client.source.modules import Modules
from train_func.client.source.order import order_namesakes
from train_func.client.source.part import BUILTINS, Part
from train_func.client.source.piece import Piece
from train_func.client.source.registries import settle_registries
from train_func.client.source.repeats import Repeats
from train_func.client.source.space import Space
from train_func.client.source.statements import Text, parsed
from train_func.client.source.uses import OF_A_MODULE, uses_of
from train_func.client.source.values import Writer
from train_func.errors import SourceRefused
from train_func.secret import may_hold_secret
from train_func.source_file import split_lines


class Collection:
    """What ``root`` needs; ``faults`` lists every reason why it cannot travel.

    ``first``: a collection of the same, made before, which knows the names that code looks up. Only under these may an
    object be written, so that no other name of a notebook changes the text.
    """

    def __init__(
        self, root: Root, is_there: Callable[[str], bool], also: Iterable[str], first: "Collection | None" = None
    ) -> None:
        self.function = root.name
        self.modules = Modules(is_there)
        self.repeats: Repeats = first.repeats if first else Repeats()
        self.writer = Writer(None if first else self.repeats)
        self.faults: list[str] = []
        self.secrets: list[Secret] = []
        self.missing: list[tuple[str, Part, Piece, int]] = []
        self.parts: dict[str, Part] = {}
        self.unimported: dict[str, str] = first.unimported if first else {}
        self._used = {part.name: sorted(part.of_name) for part in first.all_parts} if first else {}
        self._waiting: deque[tuple[Part, Piece]] = deque()
        self._size = 0
        self._names: dict[str, dict[int, list[str]]] = {}
        self.module = str(root.space.live.get("__name__", "__main__"))
        self.own = Part(self, root.space, "")
        if root.space.is_outdated(root.value):
            self.faults.append(outdated(root.name, root.space.texts[0].origin))
        self.root = self.own.statement(root.statement, root.value)
        self.own.of_name[root.name] = [self.root]
        for name in also:
            self.modules.add(ast.parse(f"import {name}"), root.statement.text)
            if name in self.modules.local:
                self._whole(name, self.root, root.statement.first)
        while self._waiting:
            self._look_up(*self._waiting.popleft())
        for part in self.all_parts if first else ():
            settle_registries(part)
            order_namesakes(part.pieces, part.of_name)
        self._accuse_missing()

    @property
    def all_parts(self) -> list[Part]:
        """The function's own module first."""
        return [self.own, *(self.parts[name] for name in sorted(self.parts))]

    @property
    def trees(self) -> list[ast.stmt]:
        """The statements that travel, the function's own first."""
        return [piece.node for part in self.all_parts for piece in part.pieces if piece.node]

    def follow(self, part: Part, piece: Piece) -> None:
        """Looks at what ``piece`` needs, when its turn comes."""
        self._size += len(piece.source.encode())
        if self._size > MAX_BYTES:
            raise SourceRefused(too_large(piece.place()))
        self._waiting.append((part, piece))

    def look_for_secrets(self, piece: Piece, place: str) -> None:
        """In a value that was computed; ``place``: of the statement that did."""
        if not may_hold_secret(piece.source):
            return
        for secret in secrets_in(parsed(piece.source), Text("", piece.source), 1, len(split_lines(piece.source))):
            shown = place.partition(": `")[0]
            self.secrets.append(Secret(secret.what, shown, place, secret.value))

    def names_of(self, part: Part, value: object) -> list[str]:
        """The names of a module that hold a mutable object, of those that code looks up."""
        if part.name not in self._names:
            names: dict[int, list[str]] = {}
            for name in (one for one in self._used.get(part.name, ()) if one in part.space.live):
                names.setdefault(id(part.space.live[name]), []).append(name)
            self._names[part.name] = names
        return self._names[part.name].get(id(value), [])

    def need_in(self, module: str, name: str, user: Piece | None, text: Text, line: int) -> None:
        """Lets ``name`` of another module travel, when that is a local one."""
        if self.modules.need(module, text, line):
            self._part(module).need(name, user or Piece(text, line, "", ""), line)

    def _look_up(self, part: Part, piece: Piece) -> None:
        if piece.node is None:
            return
        package = part.space.package
        self.modules.add(ast.Module([piece.node], []), piece.text, package, lazy_is_optional=part is not self.own)
        piece.uses = uses_of(piece.node, part.space.flags)
        groups = (
            (piece.uses.now, piece.now, True),
            (piece.uses.later, piece.later, True),
            (piece.uses.maybe, piece.later, False),
        )
        for names, needed, is_certain in groups:
            for name, line in sorted(names.items(), key=lambda item: (item[1], item[0])):
                found = part.need(name, piece, line, is_certain=is_certain)
                if piece in found and needed is piece.now and name not in BUILTINS:
                    self.faults.append(
                        f"{piece.place(line)}: {name!r} is used here with the value that it had before this statement "
                        "bound it again; give one of the two another name"
                    )
                needed += [one for one in found if one is not piece]
        self._look_into_modules(part, piece)

    def _look_into_modules(self, part: Part, piece: Piece) -> None:
        """What the piece takes from local modules."""
        assert piece.node is not None
        bound: dict[str, str] = {}
        for node in ast.walk(piece.node):
            if isinstance(node, ast.ImportFrom):
                home = part.space.absolute(node)
                if home in self.modules.local:
                    self._from(home, node, part, piece, bound)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name in self.modules.local:
                        bound[alias.asname or alias.name.partition(".")[0]] = (
                            alias.name if alias.asname else alias.name.partition(".")[0]
                        )
                        self._part(alias.name)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in self.modules.local:
                self._whole(node.value, piece, node.lineno)  # importlib.import_module("name")
        for name, chain, line in _chains(piece.node):
            held = part.space.live.get(name)
            module = bound.get(name) or (held.__name__ if isinstance(held, ModuleType) else "")
            for statement in (
                one for end in range(len(chain)) for one in part.space.imports_of(".".join([name, *chain[: end + 1]]))
            ):
                piece.later.append(part.statement(statement))
            if (
                module
                and module not in self.modules.local
                and module in sys.modules
                and piece.node
                and name not in piece.uses.own
            ):
                self.modules.need(module, piece.text, line)
            if module in self.modules.local:
                self._attribute(module, chain, piece, line)

    def _from(self, home: str, node: ast.ImportFrom, part: Part, piece: Piece, bound: dict[str, str]) -> None:
        for alias in node.names:
            if alias.name == "*":
                self._whole(home, piece, node.lineno)
            elif f"{home}.{alias.name}" in self.modules.local and not self._binds(home, alias.name):
                bound[alias.asname or alias.name] = f"{home}.{alias.name}"
                self._part(f"{home}.{alias.name}")
            else:
                self._part(home).need(alias.name, piece, node.lineno)
                if self._part(home).space.is_outdated(part.space.live.get(alias.asname or alias.name)):
                    self.faults.append(outdated(alias.name, piece.place(node.lineno)))

    def _binds(self, module: str, name: str) -> bool:
        held = self._part(module).space.live.get(name)
        return held is not None and not isinstance(held, ModuleType)

    def _attribute(self, module: str, chain: list[str], piece: Piece, line: int) -> None:
        while chain:
            name, *chain = chain
            part = self._part(module)
            held = part.space.live.get(name)
            if held is None and self.modules.need(f"{module}.{name}", piece.text, line):
                module = f"{module}.{name}"
                continue
            if name in part.space.live or name in part.space.binders:
                part.need(name, piece, line)
            elif name not in OF_A_MODULE:
                self.missing.append((f"{module}.{name}", part, piece, line))
            if not isinstance(held, ModuleType) or not self.modules.need(held.__name__, piece.text, line):
                return
            module = held.__name__
        self._whole(module, piece, line)

    def _whole(self, module: str, piece: Piece, line: int) -> None:
        """All of a module that can travel: what will be looked up in it cannot be told."""
        part = self._part(module)
        for name in list(part.space.binders):
            if name not in part.of_name:
                part.need(name, piece, line, is_certain=False)

    def _part(self, name: str) -> Part:
        if name == self.module:
            return self.own
        if name not in self.parts:
            for parent in _parents(name):
                self._part(parent)
            local = self.modules.local[name]
            live = self._live(name)
            space = Space(
                live or {"__name__": name},
                [local.text],
                file=getattr(sys.modules.get(name), "__file__", None) or local.text.origin,
            )
            space.package = name if local.is_package else name.rpartition(".")[0]
            self.parts[name] = Part(self, space, name, is_live=live is not None)
        return self.parts[name]

    def _live(self, name: str) -> Mapping[str, Any] | None:
        """What the module holds; one that was not needed yet is imported now, once for all workers."""
        if name in self.unimported:
            return None
        try:
            return vars(sys.modules.get(name) or importlib.import_module(name))
        except Exception as error:
            self.unimported[name] = f"{type(error).__name__}: {error}"
            return None

    def _accuse_missing(self) -> None:
        for name, part, piece, line in self.missing:
            within = {bound for one in part.pieces if one.node for bound in changed_within(one.node) | one.uses.binds}
            if name in within:
                continue
            known = [name for name in part.space.live if not name.startswith("_")] + sorted(BUILTINS)
            near = difflib.get_close_matches(name, [*sorted(piece.uses.own), *known], n=1, cutoff=0.75)
            self.faults.append(undefined(name, piece.place(line), near))


def _parents(name: str) -> list[str]:
    parts = name.split(".")[:-1]
    return [".".join(parts[: end + 1]) for end in range(len(parts))]


def _chains(node: ast.AST) -> list[tuple[str, list[str], int]]:
    """Every name that is looked up, with the attributes that are looked up on it, as ``a.b.c``."""
    found: list[tuple[str, list[str], int]] = []
    waiting: list[tuple[ast.AST, list[str]]] = [(node, [])]
    while waiting:
        one, chain = waiting.pop()
        if isinstance(one, ast.Attribute):
            waiting.append((one.value, [one.attr, *chain]))
            continue
        if isinstance(one, ast.Name):
            found.append((one.id, chain, one.lineno))
        waiting += [(child, []) for child in ast.iter_child_nodes(one)]
    return found
