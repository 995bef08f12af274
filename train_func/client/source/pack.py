"""Packs a function and all it uses into one module, verbatim, or refuses with every reason at once."""

import ast
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from train_func.client.source.embedded import faults_of_module
from train_func.client.source.function import Root, find
from train_func.client.source.gather import MAX_BYTES, Gathering, Piece, too_large
from train_func.client.source.literals import Secret, secrets_in
from train_func.client.source.order import ordered
from train_func.client.source.saving import saves_state
from train_func.client.source.statements import Definition, parsed
from train_func.errors import SourceRefused
from train_func.packed import NUM_HEADER_LINES, fold, split_lines, unfold

PACKED = "what train_func.pipeline.arguments(function, run) returns is expected, unchanged"
_INDENTED = "if True:\n"  # holds an indented function without touching a character of it


@dataclass(frozen=True)
class Source:
    """A function ready to travel; its bytes are ``text`` in UTF-8."""

    text: str
    sha256: str
    function: str
    """Name of the function in the packed module."""
    cells: dict[str, Any]
    """The content of ``cells.json``: from lines of the text to the cells they came from."""
    imports: Mapping[str, str]
    """Top-level names of the installed modules it cannot do without, sorted, and where each is imported first."""
    saves_state: bool = False
    """Whether it goes on where it was when it is started again."""

    def to_json(self) -> str:
        """As one text, with which another process submits the same function; ``from_json`` is its inverse."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, data: str) -> Self:
        """Raises SourceRefused unless it is what ``to_json`` has given, unchanged."""
        try:
            found = cls(**json.loads(data))
            is_whole = hashlib.sha256(found.text.encode()).hexdigest() == found.sha256 == found.cells["sha256"]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            why = f"{type(error).__name__}: {error}"
            raise SourceRefused(f"the source is no packed function ({why}): {PACKED}") from None
        if not is_whole:
            raise SourceRefused(f"the source was changed, its SHA-256 is another one: {PACKED}")
        return found


def pack(
    function: object,
    also: Sequence[str] = (),
    parameters: Mapping[str, Any] | None = None,
    *,
    is_there: Callable[[str], bool] = lambda module: False,
) -> Source:
    """Packs ``function`` with the helpers, constants, classes and imports it uses, from other cells and local modules.

    Args:
        function: to be packed.
        also: modules that have to be there beside those it imports.
        parameters: what it is called with; None: a Run with its task, as one dict.
        is_there: whether a top-level module that is not here is installed where the function runs.

    The text depends only on the text of what is packed: not on cell numbers, nor on when cells were executed.

    Raises:
        SourceRefused: when anything of it cannot travel; every reason, each with its cell and line.
    """
    root = find(function, parameters)
    gathering = Gathering(root, is_there)
    modules = gathering.modules
    for name in also:
        modules.add(ast.parse(f"import {name}"), root.statement.text)
    faults = [*gathering.faults, *modules.faults, *_nothing_published(gathering)]
    for name, (_, text) in sorted(modules.local.items()):
        faults += faults_of_module(name, text)
    secrets = _secrets(gathering)
    for secret in secrets:
        faults = [secret.hidden_from(fault) for fault in faults]
    if faults or secrets:
        raise SourceRefused(list(dict.fromkeys([*faults, *(secret.fault for secret in secrets)])))
    body, pieces = _body(root, gathering)
    package = root.space.package if _is_relative(gathering.pieces) else ""
    packed = fold(body, [module for _, (module, _) in sorted(modules.local.items())], package)
    data = packed.encode()
    _check_whole(data, packed, root)
    sha256 = hashlib.sha256(data).hexdigest()
    pieces += [_entry(first, module.path, 1, module.text) for module, first in unfold(packed).modules]
    cells = {"function": root.name, "sha256": sha256, "pieces": pieces}
    imports = dict(sorted(modules.installed.items()))
    return Source(packed, sha256, root.name, cells, imports, saves_state(_trees(gathering)))


def _secrets(gathering: Gathering) -> list[Secret]:
    statements = [piece.statement for piece in gathering.pieces]
    found = [secret for s in statements for secret in secrets_in(s.node, s.text, s.first, s.last)]
    for _, (_, text) in sorted(gathering.modules.local.items()):
        found += secrets_in(text.tree, text, 1, len(text.lines))
    return found


def _nothing_published(gathering: Gathering) -> Iterator[str]:
    nodes = [node for tree in _trees(gathering) for node in ast.walk(tree)]
    returns = any(isinstance(n, ast.Return) and n.value is not None for n in ast.walk(gathering.root.statement.node))
    if _opens_session(nodes) and not returns and not any(_publishes(node) for node in nodes) and _trains(nodes):
        yield (
            f"{gathering.root.statement.place()}: a Trainer is used in a Session and `.publish(` stands nowhere: the "
            "model would be lost. Call session.publish(trainer) at the end of the `with Session(...)` block"
        )


def _trees(gathering: Gathering) -> list[ast.AST]:
    local = [text.tree for _, text in gathering.modules.local.values()]
    return [*(piece.statement.node for piece in gathering.pieces), *local]


def _opens_session(nodes: list[ast.AST]) -> bool:
    ours = [n for n in nodes if isinstance(n, ast.ImportFrom) and (n.module or "").startswith("train_func")]
    names = {alias.asname or alias.name for node in ours for alias in node.names if alias.name == "Session"}
    return any(isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id in names for n in nodes)


def _trains(nodes: list[ast.AST]) -> bool:
    names = {n.id if isinstance(n, ast.Name) else n.attr for n in nodes if isinstance(n, ast.Name | ast.Attribute)}
    return "Trainer" in names


def _publishes(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr == "publish"
    return isinstance(node, ast.Constant) and node.value == "publish"


def _is_relative(pieces: list[Piece]) -> bool:
    nodes = (node for piece in pieces for node in ast.walk(piece.statement.node))
    return any(isinstance(node, ast.ImportFrom) and node.level for node in nodes)


def _body(root: Root, gathering: Gathering) -> tuple[str, list[dict[str, Any]]]:
    """The pieces, one after the other, and for each its lines in the packed text."""
    last = max(piece.statement.text.order for piece in gathering.pieces)
    futures = [statement for statement in root.space.futures if statement.text.order <= last]
    statements = [*futures, *(piece.statement for piece in ordered(gathering.pieces, gathering.root))]
    text, entries, was_definition = "", [], False
    for statement in statements:
        source, is_definition = statement.source, isinstance(statement.node, Definition)
        if text and (is_definition or was_definition):
            text += 2 * _line_break(text)
        was_definition = is_definition
        if statement.is_indented:
            text += _INDENTED
        first = NUM_HEADER_LINES + len(split_lines(text)) + 1
        text += source
        line = statement.text.line + statement.first - 1
        entries.append(_entry(first, statement.text.origin, line, source))
    return text, entries


def _line_break(text: str) -> str:
    """The one that ``text`` ends with: a line feed after a carriage return would become part of it."""
    return next(end for end in ("\r\n", "\r", "\n") if text.endswith(end))


def _entry(first: int, origin: str, line: int, text: str) -> dict[str, Any]:
    """Of the map to cells: a text from line ``first`` of the packed text on, and where it stands in its origin."""
    return {"first": first, "last": first + len(split_lines(text)) - 1, "origin": origin, "line": line, "text": text}


def _check_whole(data: bytes, packed: str, root: Root) -> None:
    if len(data) > MAX_BYTES:  # with the local modules
        raise SourceRefused(too_large(root.statement.place()))
    try:
        parsed(packed)
    except SyntaxError as error:
        raise SourceRefused(
            f"{root.statement.place()}: what the function uses cannot stand in one module: {error.msg} "
            f"(`{(error.text or '').strip()}`). Write that statement on lines of its own"
        ) from error
