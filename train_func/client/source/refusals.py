"""Refusals: faults, with reason and remedy, of values, names and credentials that cannot travel."""

import ast
import builtins
import difflib
import re
from collections.abc import Container, Iterable
from dataclasses import dataclass
from types import FunctionType, ModuleType

from train_func.client.source.cells import Space, Statement, Text
from train_func.client.source.names import Definition
from train_func.client.source.values import NoValueError
from train_func.secret import may_hold_secret, secret_in, secret_pairs
from train_func.tables import is_table

IPYTHON_ONLY = frozenset({"get_ipython", "display", "In", "Out", "__IPYTHON__"})
BUILTINS = frozenset(dir(builtins)) - IPYTHON_ONLY
MAX_BYTES = 50_000_000
_PUBLISHES = re.compile(r"publish|TRAIN_FUNC_OUTPUT|\b(?:save|write|open|dump|copy|to_)\w*\(")
_LOOPS = re.compile(r"\.steps\(")
_OF_A_MACHINE = frozenset(
    (
        *("is_available", "device_count", "get_device_name", "current_device", "cpu_count", "process_cpu_count"),
        *("sched_getaffinity", "gethostname", "mkdtemp", "mkstemp", "gettempdir"),
        *("TemporaryDirectory", "NamedTemporaryFile"),
    )
)
_OF_A_PROCESS = frozenset(("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
_OF_DATA = frozenset(("open", "read_text", "read_bytes", "map", "starmap", "submit"))
_PASSING = frozenset(  # what these give of such a fact is one, too
    (
        *("int", "float", "str", "bool", "max", "min", "round", "abs", "list", "tuple", "dict", "set", "sorted"),
        *("range", "append", "extend", "update", "get", "getenv", "format", "join"),
        *("Path", "PurePath", "dirname", "abspath", "realpath", "expanduser"),
    )
)


def machine_fact(node: ast.AST, space: Space, value: object = None) -> str:
    """Returns the part of an expression that depends on this machine or process; "" if there is none.

    Follows names, and also functions written here if ``value``, the result, is a single text or number.
    """
    waiting, seen = [node], set[str]()
    while waiting:
        part = waiting.pop()
        if isinstance(part, ast.Name) and part.id not in seen:
            if part.id == "__file__":
                return "__file__"
            seen.add(part.id)
            binder = space.binder(part.id)
            waiting += [binder.node] if binder else []
        elif isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value in _OF_A_PROCESS:
            return part.value
        elif isinstance(part, ast.Call):
            called = part.func.attr if isinstance(part.func, ast.Attribute) else getattr(part.func, "id", "")
            function = space.live.get(called)
            called = getattr(function, "__name__", called)
            is_followed = isinstance(value, str | int) and isinstance(function, FunctionType) and called not in seen
            if is_followed and (statement := space.definition_of(function)):
                seen.add(called)
                waiting += [
                    part.value for part in ast.walk(statement.node) if isinstance(part, ast.Return) and part.value
                ]
                waiting += [part.test for part in ast.walk(statement.node) if isinstance(part, ast.If)]
            if called in _OF_A_MACHINE:
                return ast.unparse(part.func)
            waiting += [*part.args, *(word.value for word in part.keywords)] if called in _PASSING else []
            waiting += [part.func.value] if isinstance(part.func, ast.Attribute) and called not in _OF_DATA else []
        elif not isinstance(part, Definition | ast.Lambda):
            waiting += ast.iter_child_nodes(part)
    return ""


def value_fault(
    name: str, place: str, why: NoValueError, value: object, function: str, *, is_imported: bool = False
) -> str:
    """Returns the fault of a value that cannot travel."""
    file = getattr(getattr(value, "__code__", None), "co_filename", None)
    origin = f" (its text is in {file}: import it from there)" if file and not file.startswith("<") else ""
    what, *hint = re.split(r"([;:] )", f"{why}", maxsplit=1)
    remedy = f"{'Open' if what.endswith('an open file') else 'Build'} it inside {function}"
    if is_table(value):
        remedy = f"Give it as Run(inputs={{{name!r}: {name}}}), which lets it travel as a Parquet file"
    elif isinstance(value, ModuleType) or is_imported:
        remedy = "Import it inside the code that uses it"
    return f"{place}: {name!r} is {what}{origin}, and cannot travel to a worker{''.join(hint)}. {remedy}"


def undefined_fault(name: str, place: str, known: Iterable[str]) -> str:
    """Returns the fault of a name that nothing binds."""
    if name in IPYTHON_ONLY:
        return ipython_fault(name, place)
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.75)
    meant = f"; did you mean {near[0]!r}?" if near else "."
    return (
        f"{place}: {name!r} is not defined: a name must be bound in the function, in an executed cell or its file, "
        f"or be a builtin{meant} Correct it, or define or import it and run that cell before submitting"
    )


def outdated_fault(name: str, file: str) -> str:
    """Returns the fault of a function or a class whose file was edited and not loaded again."""
    return (
        f"{file}: {name!r} is not what its file says now: the file was changed after it was imported, "
        "or something was set on it since. Restart the kernel, or use importlib.reload and run the import again; "
        "then submit again"
    )


def ipython_fault(name: str, place: str) -> str:
    """Returns the fault of a name that only a notebook has."""
    return (
        f"{place}: {name!r} belongs to IPython (magics and ! commands use it too), and a worker is plain Python. "
        "Leave it out of what the function uses, or put it in a cell of its own"
    )


def unpublished_fault(statement: Statement, packed: str, of_worker: Container[str]) -> str:
    """Returns the fault of a function that trains a Trainer in a Session and publishes nothing; empty if uncertain.

    Args:
        statement: the function.
        packed: all text that travels. Code that writes files, or passes Session or Trainer on, may publish.
        of_worker: as ``names_of_worker`` returns them.
    """
    if _PUBLISHES.search(packed) or "Trainer" not in of_worker:
        return ""
    nodes, kinds = [*ast.walk(statement.node)], dict[str, str]()
    for node in nodes:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=ast.Name(id=kind)))
                | ast.withitem(context_expr=ast.Call(func=ast.Name(id=kind)), optional_vars=ast.Name(id=name))
            ) if kind in ("Session", "Trainer"):
                kinds[name] = kind
    owners = {node.value for node in nodes if isinstance(node, ast.Attribute)}
    read = [node for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    is_handed_on = any(node.id in kinds and node not in owners for node in read)
    session = next((name for name, kind in kinds.items() if kind == "Session"), "")
    for node in nodes if session and not is_handed_on else []:
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="train")) if kinds.get(name) == "Trainer":
                return (
                    f"{statement.place(node.lineno)}: the model that {name!r} trains is lost with the worker, because "
                    f"nothing in the source publishes it. Write {session}.publish({name}) after the training"
                )
    return ""


def unpublished_note(function: str, packed: str) -> str:
    """Returns a note on a loop over session.steps whose model no packed code publishes or writes; else empty."""
    if _PUBLISHES.search(packed) or not (_LOOPS.search(packed) and "train_func.worker" in packed):
        return ""
    return (
        f"{function} trains over session.steps, and nothing in its source publishes the model, which is then lost with "
        "the worker: call session.publish(model) after the loop"
    )


def names_of_worker(packed: ast.AST) -> set[str]:
    """Returns the names that code imports from ``train_func.worker``, whatever it calls them."""
    imports = [node for node in ast.walk(packed) if isinstance(node, ast.ImportFrom)]
    return {alias.name for node in imports if node.module == "train_func.worker" for alias in node.names}


def variables_read(packed: ast.AST) -> list[str]:
    """Returns the variables of the environment that code reads by a literal name, without those that it sets itself."""
    read, is_set = dict[str, None](), set[str]()
    for node in ast.walk(packed):
        match node:
            case ast.Subscript(
                value=ast.Name("environ") | ast.Attribute(attr="environ"), slice=ast.Constant(str(name))
            ):
                if isinstance(node.ctx, ast.Load):
                    read[name] = None
                else:
                    is_set.add(name)
            case ast.Call(func=ast.Name("getenv") | ast.Attribute(attr="getenv"), args=[ast.Constant(str(name)), *_]):
                read[name] = None
            case ast.Call(
                func=ast.Attribute(value=ast.Name("environ") | ast.Attribute(attr="environ"), attr=method),
                args=[ast.Constant(str(name)), *_],
            ):
                if method == "get":
                    read[name] = None
                else:
                    is_set.add(name)
    return [name for name in read if name not in is_set]


def size_fault(place: str) -> str:
    """Returns the fault of too much text."""
    return (
        f"{place}: with this the function and what it uses are more than {MAX_BYTES:,} bytes of text, the most that "
        "travels. Keep data in a file or the store, and read it there"
    )


@dataclass(frozen=True)
class Secret:
    """A credential in a line of code; ``value`` is empty when only its line is known."""

    what: str
    place: str
    line: str
    value: str

    @property
    def fault(self) -> str:
        """Returns the fault of that line."""
        return (
            f"{self.place}: holds {self.what}; no credential may stand in code, which is stored and shown. "
            "Remove it there, and read it from the environment: a cluster sets it from a Secret"
        )

    def hidden_from(self, fault: str) -> str:
        """Returns another fault without the value and without its line."""
        fault = fault.replace(self.line, self.place)
        return fault.replace(self.value, "***") if self.value else fault


def secrets_in(tree: ast.AST, text: Text, first: int, last: int) -> list[Secret]:
    """Returns the credentials in the lines of ``text`` from ``first`` to ``last``, comments included; one per line.

    ``tree``: the syntax tree of these lines; names and values within a string are read like prose.
    """
    hits: dict[int, tuple[str, str]] = {}
    for number in range(first, last + 1):
        line = text.lines[number - 1]
        if not may_hold_secret(line):
            continue
        if what := secret_in(line):
            hits[number] = what, ""
        for what, value in (*secret_pairs(line, is_code=True), *secret_pairs(line.partition("#")[2])):
            hits.setdefault(number, (what, value))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and may_hold_secret(node.value):
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            for what, value in secret_pairs(node.value):
                number = next((line for line in lines if value in text.lines[line - 1]), node.lineno)
                hits.setdefault(number, (what, value))
    return [
        Secret(what, text.place(number).partition(": `")[0], text.place(number), value)
        for number, (what, value) in sorted(hits.items())
    ]
