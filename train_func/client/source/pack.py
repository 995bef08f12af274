"""Packs a function and all it uses into one module, code verbatim and names by value, or refuses with every reason."""

import ast
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from train_func.client.source.collect import Collection
from train_func.client.source.faults import MAX_BYTES, too_large
from train_func.client.source.function import Root, find
from train_func.client.source.literals import Secret, secrets_in
from train_func.client.source.order import ordered
from train_func.client.source.part import Part
from train_func.client.source.piece import Piece
from train_func.client.source.saving import saves_state
from train_func.client.source.statements import Definition, parsed
from train_func.errors import SourceRefused
from train_func.source_file import NUM_HEADER_LINES, Module, fold, split_lines, unfold

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
    module: str = "__main__"
    """The module that the function was written in; that of a notebook or a script is ``__main__``."""

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
    """Packs ``function`` with the functions, classes, imports and values it uses, of other cells and local modules.

    Args:
        function: to be packed.
        also: modules that have to be there beside those it imports.
        parameters: what it is called with; None: a Run with its task, as one dict.
        is_there: whether a top-level module that is not here is installed where the function runs.

    The text depends on the text of functions and classes and on the values of names, as they are now: not on cell
    numbers, nor on when cells were executed.

    Raises:
        SourceRefused: when anything of it cannot travel; every reason, each with its cell and line.
    """
    root = find(function, parameters)
    collection = Collection(root, is_there, also, first=Collection(root, is_there, also))
    faults = [*collection.faults, *collection.modules.faults, *_nothing_published(collection)]
    secrets = _secrets(collection)
    for secret in secrets:
        faults = [secret.hidden_from(fault) for fault in faults]
    if faults or secrets:
        raise SourceRefused(list(dict.fromkeys([*faults, *(secret.fault for secret in secrets)])))
    own, *others = collection.all_parts
    body, pieces = _body(own, collection.root)
    bodies = {part.name: _body(part, None) for part in others}
    local = collection.modules.local
    modules = [
        Module(name, local[name].is_package, local[name].text.origin, text) for name, (text, _) in bodies.items()
    ]
    package = root.space.package if _is_relative(own) else ""
    packed = fold(body, modules, package)
    data = packed.encode()
    _check_whole(data, packed, root)
    sha256 = hashlib.sha256(data).hexdigest()
    entries = [_moved(entry, NUM_HEADER_LINES) for entry in pieces]
    first_lines = {module.path: first for module, first in unfold(packed).modules}
    for module in modules:
        entries += [_moved(entry, first_lines[module.path] - 1) for entry in bodies[module.name][1]]
    cells = {"function": root.name, "sha256": sha256, "modules": first_lines, "pieces": entries}
    imports = dict(sorted(collection.modules.installed.items()))
    return Source(packed, sha256, root.name, cells, imports, saves_state(collection.trees), collection.module)


def _secrets(collection: Collection) -> list[Secret]:
    statements = [piece.statement for part in collection.all_parts for piece in part.pieces if piece.statement]
    statements = list(dict.fromkeys(statements))
    found = [secret for s in statements for secret in secrets_in(s.node, s.text, s.first, s.last)]
    places = {secret.place for secret in found}
    return [*found, *(secret for secret in collection.secrets if secret.place not in places)]


def _nothing_published(collection: Collection) -> Iterator[str]:
    nodes = [node for tree in collection.trees for node in ast.walk(tree)]
    root = collection.root.node or ast.Pass()
    returns = any(isinstance(n, ast.Return) and n.value is not None for n in ast.walk(root))
    if _opens_session(nodes) and not returns and not any(_publishes(node) for node in nodes) and _trains(nodes):
        yield (
            f"{collection.root.place()}: a Trainer is used in a Session and `.publish(` stands nowhere: the "
            "model would be lost. Call session.publish(trainer) at the end of the `with Session(...)` block"
        )


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


def _is_relative(part: Part) -> bool:
    nodes = (node for piece in part.pieces if piece.node for node in ast.walk(piece.node))
    return any(isinstance(node, ast.ImportFrom) and node.level for node in nodes)


def _body(part: Part, root: Piece | None) -> tuple[str, list[dict[str, Any]]]:
    """The text of one module, and the map of its lines."""
    last = max((piece.text.order for piece in part.pieces), default=0)
    futures = [statement for statement in part.space.futures if statement.text.order <= last]
    text, entries, was_definition = "", [], False
    pieces = [Piece.of(statement) for statement in futures if part.pieces]
    for piece in [*pieces, *ordered(part.pieces, root)]:
        is_definition = isinstance(piece.node, Definition)
        if text and (is_definition or was_definition):
            text += 2 * _line_break(text)
        was_definition = is_definition
        if piece.is_indented:
            text += _INDENTED
        first = len(split_lines(text)) + 1
        text += piece.source
        entries.append(_entry(first, piece))
    return text, entries


def _line_break(text: str) -> str:
    """The one that ``text`` ends with: a line feed after a carriage return would become part of it."""
    return next(end for end in ("\r\n", "\r", "\n") if text.endswith(end))


def _entry(first: int, piece: Piece) -> dict[str, Any]:
    """Of the map to cells: the lines of a piece, and the statement that stands for them in its cell or file."""
    last = first + len(split_lines(piece.source)) - 1
    return {
        "first": first,
        "last": last,
        "origin": piece.text.origin,
        "line": piece.text.line + piece.line - 1,
        "text": piece.original,
        **({"is_value": True} if piece.node is None else {}),
    }


def _moved(entry: dict[str, Any], num_lines: int) -> dict[str, Any]:
    return {**entry, "first": entry["first"] + num_lines, "last": entry["last"] + num_lines}


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
