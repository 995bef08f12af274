"""Packs a function and everything it uses into one module, or refuses it with every reason."""

import ast
import contextlib
import functools
import hashlib
import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, Self

from train_func.call import call_of
from train_func.client.source.cells import Space, Statement, Text, layers, parse
from train_func.client.source.collect import Collection
from train_func.client.source.names import Definition
from train_func.client.source.pieces import sort_pieces
from train_func.client.source.plans import plan_fault
from train_func.client.source.refusals import (
    MAX_BYTES,
    Secret,
    names_of_worker,
    secrets_in,
    size_fault,
    unpublished_fault,
    variables_read,
)
from train_func.client.source.values import is_open_file
from train_func.errors import SourceRefused
from train_func.fields import json_fault
from train_func.secret import may_hold_secret
from train_func.wire.source_file import NUM_HEADER_LINES, Module, fold, split_lines, unfold

PACKED = "what train_func.pipeline.arguments(function, run) returns is expected, unchanged"
ACCEPTED = (
    "a function made by `def name(parameters):` in a notebook cell or a .py file is expected, "
    "taking the dict in an argument called `parameters`, each of its values by name, or nothing"
)
# A folded local module shows as a file below source.py: ".../source.py/mypackage/module.py".
_FRAME = re.compile(
    r'^[^\n]*File "(?:[^"\n]*[/\\])?source\.py(?:/(?P<path>[^"\n]+))?", line (?P<line>\d+)[^\n]*\n?', re.MULTILINE
)
_INDENTED = "if True:\n"  # holds an indented function without touching a character of it


@dataclass(frozen=True)
class Source:
    """A function ready to travel; its bytes are ``text`` in UTF-8."""

    text: str
    sha256: str
    function: str
    """Name of the function in the packed module."""
    cells: dict[str, Any]
    """Maps lines of the text to the cells that they come from."""
    imports: Mapping[str, str]
    """Top-level names of the installed modules that it needs, sorted, and the place of the first import of each."""
    module: str = "__main__"
    """The module of the function; ``__main__`` for a notebook or a script."""
    variables: list[str] = field(default_factory=list)
    """The variables of the environment that it reads and does not set."""

    def to_json(self) -> str:
        """Returns a text with which another process can submit the same function; ``from_json`` is its inverse."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, data: str) -> Self:
        """Returns the source; raises SourceRefused unless the text is the unchanged result of ``to_json``."""
        try:
            source = cls(**json.loads(data))
            is_whole = hashlib.sha256(source.text.encode()).hexdigest() == source.sha256 == source.cells["sha256"]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            why = f"{type(error).__name__}: {error}"
            raise SourceRefused(f"the source is no packed function ({why}): {PACKED}") from None
        if not is_whole:
            raise SourceRefused(f"the source was changed, its SHA-256 is another one: {PACKED}")
        return source


def find(function: object, parameters: Mapping[str, Any] | None = None) -> tuple[Space, Statement]:
    """Returns the statement that defines ``function``, and the space around it.

    ``parameters``: the parameters of the call; None: a Run with its task.

    Raises:
        SourceRefused: its kind cannot travel, or it has no text.
    """
    inner = next(reversed([*layers(getattr(function, "func", getattr(function, "__func__", function)))]), None)
    space = Space.of(inner.__globals__, inner.__code__.co_filename) if inner else None
    text = space.text_of(inner.__code__) if space and inner else None
    place = f"{text.place(inner.__code__.co_firstlineno)}: " if text and inner else ""
    if kind := _kind_of(function):
        raise SourceRefused(f"{place}{kind} was given; {ACCEPTED}. Write such a function around it")
    statement = space.definition_at(inner.__code__) if space and inner else None
    if inner is None or space is None or text is None:
        name = getattr(function, "__name__", type(function).__name__)
        raise SourceRefused(
            f"{name!r} has no text that can be found, as at the >>> prompt or in exec; {ACCEPTED}. Define it there"
        )
    if statement is None:
        raise SourceRefused(
            f"{place}{inner.__name__!r} is no longer there; the file was changed after it was imported. Restart "
            "the kernel or use importlib.reload, then submit again"
        )
    if inner.__closure__:
        captured = ", ".join(repr(name) for name in inner.__code__.co_freevars)
        remedies = " ".join(_closure_remedies(inner))
        raise SourceRefused(
            f"{place}the nested function {inner.__name__!r} uses {captured} of the function around it, which do not "
            f"travel. Define {inner.__name__} at the top level. {remedies}"
        )
    if inner is not function and not isinstance(function, staticmethod) and not statement.decorators:
        raise SourceRefused(
            f"{place}{inner.__name__!r} was changed by a call below its definition; {ACCEPTED}. Write that call as a "
            "decorator above the `def`"
        )
    assert callable(function)
    try:
        call_of(function, parameters or {}, is_whole=parameters is None)
    except TypeError as error:
        raise SourceRefused(f"{place}{error}") from None
    return space, statement


def _closure_remedies(function: FunctionType) -> Iterator[str]:
    """Returns what to do about each kind of value that a nested function takes from the function around it."""
    values = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    files, plain, others = list[str](), list[str](), list[str]()
    for name, cell in values.items():
        with contextlib.suppress(ValueError):  # an empty cell
            value = cell.cell_contents
            is_plain = json_fault(name, name, value) is None
            (files if is_open_file(value) else plain if is_plain else others).append(repr(name))
    if files:
        yield f"An open file cannot travel to a worker: open {', '.join(files)} inside {function.__name__}."
    if plain:
        yield f"Pass {', '.join(plain)} by Run(parameters={{...}})."
    if others:
        yield f"Build {', '.join(others)} inside {function.__name__}, or define it at the top level, too."


def _kind_of(function: object) -> str:
    """Returns the kind of an object that is no function that can travel; empty for a function."""
    name = getattr(function, "__qualname__", type(function).__name__)
    if isinstance(function, functools.partial):
        return f"a functools.partial of {getattr(function.func, '__qualname__', function.func)!r}"
    if isinstance(function, type):
        return f"the class {name!r}"
    if isinstance(function, MethodType) or (
        isinstance(function, FunctionType) and "." in name.rpartition("<locals>.")[2]
    ):
        return f"the method {name!r}"
    if isinstance(function, BuiltinFunctionType) or not callable(function):
        return f"{name!r}, which has no Python text,"
    if name.endswith("<lambda>"):
        return "a lambda"
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return f"`async def {name}`"
    return f"the generator function {name!r}" if inspect.isgeneratorfunction(function) else ""


def pack(
    function: object,
    also: Sequence[str] = (),
    parameters: Mapping[str, Any] | None = None,
    *,
    is_there: Callable[[str], bool] = lambda module: False,
    workers: int = 1,
) -> Source:
    """Packs ``function`` with the functions, classes, imports and values it uses, of other cells and local modules.

    Args:
        function: the function to pack.
        also: modules that it needs besides those it imports.
        parameters: the parameters of the call; None: a Run with its task, as one dict.
        is_there: returns whether a top-level module that is not here is installed where the function runs.
        workers: number of workers of the run.

    The text depends on the text of functions and classes and on the current values of names. It does not depend on cell
    numbers, or on the order in which cells were executed.

    Raises:
        SourceRefused: a part of it cannot travel; the message has every reason with its cell and line.
    """
    space, statement = find(function, parameters)
    collection = Collection(space, statement, function, is_there, also)
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
    modules = [Module(module.name, module.is_package, module.text.origin, module.text.text) for module in local]
    packed = fold(body, modules, space.package if is_relative else "")
    data = packed.encode()
    if len(data) > MAX_BYTES:  # with the local modules
        raise SourceRefused(size_fault(statement.place()))
    try:
        tree = parse(packed)
    except SyntaxError as error:
        raise SourceRefused(
            f"{statement.place()}: what the function uses cannot stand in one module: {error.msg} "
            f"(`{(error.text or '').strip()}`). Write that statement on lines of its own"
        ) from error
    of_worker = names_of_worker(tree)
    faults = [plan_fault(statement, packed, of_worker, workers), unpublished_fault(statement, packed, of_worker)]
    if any(faults):
        raise SourceRefused([*filter(None, faults)])
    sha256 = hashlib.sha256(data).hexdigest()
    lines = {module.path: first for module, first in unfold(packed).modules}
    for module in (shipped for shipped in modules if shipped.text):
        first = lines[module.path]
        last = first + len(split_lines(module.text)) - 1
        entries.append({"first": first, "last": last, "origin": module.path, "line": 1, "text": module.text})
    cells = {"function": statement.name, "sha256": sha256, "modules": lines, "pieces": entries}
    imports = dict(sorted(collection.modules.installed.items()))
    return Source(packed, sha256, statement.name, cells, imports, collection.module_name, variables_read(tree))


def _secrets(collection: Collection) -> list[Secret]:
    statements = dict.fromkeys(piece.statement for piece in collection.pieces if piece.statement)
    secrets = [secret for s in statements for secret in secrets_in(s.node, s.text, s.first, s.last)]
    for module in collection.modules.local.values():
        secrets += secrets_in(module.text.tree, module.text, 1, len(module.text.lines))
    places = {secret.place for secret in secrets}
    for piece in collection.pieces:
        where = piece.place().partition(": `")[0]
        is_computed = piece.source != piece.original and may_hold_secret(piece.source)
        if is_computed and where not in places:
            source = f"if True:\n{piece.source}" if piece.is_indented else piece.source
            inner = secrets_in(parse(source), Text("", source), 1, len(split_lines(source)))
            secrets += [Secret(secret.what, where, piece.place(), secret.value) for secret in inner[:1]]
    return secrets


def _body(collection: Collection) -> tuple[str, list[dict[str, Any]]]:
    """Returns the text of the function's own module, and the map of its lines."""
    futures = ", ".join(collection.space.futures)
    text, entries, was_definition = f"from __future__ import {futures}\n" if futures else "", [], False
    for piece in sort_pieces(collection.pieces, collection.root):
        is_definition = isinstance(piece.node, Definition)
        if text and (is_definition or was_definition):
            # A line feed after a carriage return would become part of it.
            text += 2 * next(end for end in ("\r\n", "\r", "\n") if text.endswith(end))
        was_definition = is_definition
        text += _INDENTED if piece.is_indented else ""
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


def locate(cells: Mapping[str, Any], traceback_text: str) -> list[tuple[str, int, str]]:
    """Returns the frames of ``traceback_text`` in the packed module, innermost last.

    Args:
        cells: the map of ``Source.cells``.
        traceback_text: a traceback as Python prints it.

    Returns:
        Per frame: the origin ("cell In[5]" or a file), the line in it counted from 1, that line without indentation.
    """
    places = []
    for frame in _FRAME.finditer(traceback_text):
        line, modules = int(frame["line"]), cells.get("modules", {})
        if frame["path"] is not None and frame["path"] not in modules:
            continue
        line += modules[frame["path"]] - 1 if frame["path"] is not None else 0
        piece = next(
            (entry for entry in cells["pieces"] if entry["first"] <= line <= entry["last"] and entry["text"]), None
        )
        if piece is None:
            continue
        lines = split_lines(piece["text"])
        index = 0 if "is_value" in piece else min(line - piece["first"], len(lines) - 1)
        text = lines[index].strip()
        quoted = re.match(r" {4,}(?P<line>[^\n]*)", traceback_text[frame.end() :])
        if quoted is None or quoted["line"].strip() == text:  # other packages have a source.py too
            places.append((piece["origin"], piece["line"] + index, text))
    return places


def main_thread(stacks: str) -> str:
    """Returns the lines of the main thread in what faulthandler has printed, the innermost frame first.

    faulthandler prints the oldest thread last; for more than a hundred threads it prints an ellipsis in its place.
    """
    return "" if stacks.rstrip().endswith("\n...") else stacks.rpartition("hread 0x")[2]
