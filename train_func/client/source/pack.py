"""Packs a function and all it uses into one module, code verbatim and names by value, or refuses with every reason."""

import ast
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from train_func.client.source.cells import Text, parse
from train_func.client.source.collect import Collection
from train_func.client.source.faults import MAX_BYTES, too_large
from train_func.client.source.function import Root, find
from train_func.client.source.literals import Secret, secrets_in
from train_func.client.source.names import Definition
from train_func.client.source.pieces import Piece, ordered
from train_func.errors import SourceRefused
from train_func.secret import may_hold_secret
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
    collection = Collection(root.space, root.statement, root.value, is_there, also)
    faults = [*collection.faults, *collection.modules.faults]
    secrets = _secrets(collection)
    for secret in secrets:
        faults = [secret.hidden_from(fault) for fault in faults]
    if faults or secrets:
        raise SourceRefused(list(dict.fromkeys([*faults, *(secret.fault for secret in secrets)])))
    body, entries = _body(collection)
    local = [collection.modules.local[name] for name in sorted(collection.modules.local)]
    nodes = (node for piece in collection.pieces if piece.node for node in ast.walk(piece.node))
    is_relative = any(isinstance(node, ast.ImportFrom) and node.level for node in nodes)
    modules = [Module(one.name, one.is_package, one.text.origin, one.text.text) for one in local]
    packed = fold(body, modules, root.space.package if is_relative else "")
    data = packed.encode()
    _check_whole(data, packed, root)
    sha256 = hashlib.sha256(data).hexdigest()
    lines = {module.path: first for module, first in unfold(packed).modules}
    for module in (one for one in modules if one.text):
        first = lines[module.path]
        last = first + len(split_lines(module.text)) - 1
        entries.append({"first": first, "last": last, "origin": module.path, "line": 1, "text": module.text})
    cells = {"function": root.name, "sha256": sha256, "modules": lines, "pieces": entries}
    imports = dict(sorted(collection.modules.installed.items()))
    return Source(packed, sha256, root.name, cells, imports, collection.module_name)


def _secrets(collection: Collection) -> list[Secret]:
    statements = dict.fromkeys(piece.statement for piece in collection.pieces if piece.statement)
    found = [secret for s in statements for secret in secrets_in(s.node, s.text, s.first, s.last)]
    for module in collection.modules.local.values():
        found += secrets_in(module.text.tree, module.text, 1, len(module.text.lines))
    places = {secret.place for secret in found}
    for piece in (one for one in collection.pieces if may_hold_secret(one.source)):  # in what was computed
        place, source = piece.place(), f"if True:\n{piece.source}" if _is_indented(piece) else piece.source
        inner = secrets_in(parse(source), Text("", source), 1, len(split_lines(source)))
        where = place.partition(": `")[0]
        if piece.source != piece.original and where not in places:
            found += [Secret(one.what, where, place, one.value) for one in inner[:1]]
    return found


def _is_indented(piece: Piece) -> bool:
    return piece.node is not None and piece.statement is not None and piece.statement.is_indented


def _body(collection: Collection) -> tuple[str, list[dict[str, Any]]]:
    """The text of the function's own module, and the map of its lines."""
    last = max(piece.text.order for piece in collection.pieces)
    futures = [statement for statement in collection.space.futures if statement.text.order <= last]
    pieces = [Piece(one.text, one.first, str, one.source, one.node, source=one.source) for one in futures]
    text, entries, was_definition = "", [], False
    for piece in [*pieces, *ordered(collection.pieces, collection.root)]:
        is_definition = isinstance(piece.node, Definition)
        if text and (is_definition or was_definition):
            # A line feed after a carriage return would become part of it.
            text += 2 * next(end for end in ("\r\n", "\r", "\n") if text.endswith(end))
        was_definition = is_definition
        text += _INDENTED if _is_indented(piece) else ""
        first = len(split_lines(text)) + 1
        text += piece.source
        entry = {
            "first": first + NUM_HEADER_LINES,
            "last": first + len(split_lines(piece.source)) - 1 + NUM_HEADER_LINES,
            "origin": piece.text.origin,
            "line": piece.text.line + piece.line - 1,
            "text": piece.original,
        }
        entries.append({**entry, "is_value": True} if piece.node is None else entry)
    return text, entries


def _check_whole(data: bytes, packed: str, root: Root) -> None:
    if len(data) > MAX_BYTES:  # with the local modules
        raise SourceRefused(too_large(root.statement.place()))
    try:
        parse(packed)
    except SyntaxError as error:
        raise SourceRefused(
            f"{root.statement.place()}: what the function uses cannot stand in one module: {error.msg} "
            f"(`{(error.text or '').strip()}`). Write that statement on lines of its own"
        ) from error
