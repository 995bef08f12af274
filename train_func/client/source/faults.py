"""What is said of what cannot travel, and what says which machine or process this is."""

import ast
import builtins
import difflib
import sys
from collections.abc import Iterable, Iterator
from types import FunctionType, ModuleType

from train_func.client.source.cells import ABSENT, Space, may_give
from train_func.client.source.definitions import changed_within, given_in
from train_func.client.source.modules import LocalModule
from train_func.client.source.names import OF_A_MODULE, Definition, uses_of
from train_func.client.source.values import ALLOWED, NoValueError
from train_func.tables import is_table

IPYTHON_ONLY = frozenset({"get_ipython", "display", "In", "Out", "__IPYTHON__"})
BUILTINS = frozenset(dir(builtins)) - IPYTHON_ONLY
MAX_BYTES = 50_000_000
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
        *(
            "int",
            "float",
            "str",
            "bool",
            "max",
            "min",
            "round",
            "abs",
            "list",
            "tuple",
            "dict",
            "set",
            "sorted",
            "range",
        ),
        *("Path", "PurePath", "join", "dirname", "abspath", "realpath", "expanduser", "format", "get", "getenv"),
        *("append", "extend", "update"),
    )
)


def of_this_machine(node: ast.AST, space: Space, value: object = None) -> str:
    """What in an expression says which machine or process this is; "" for nothing.

    Follows names, and where ``value``, which it gave, is a single text or number, functions that were written here.
    """
    waiting, seen = [node], set[str]()
    while waiting:
        one = waiting.pop()
        if isinstance(one, ast.Name) and one.id not in seen:
            if one.id == "__file__":
                return "__file__"
            seen.add(one.id)
            binder = space.binder(one.id)
            waiting += [] if binder is None else _given_to(binder.node, one.id)
        elif isinstance(one, ast.Constant) and isinstance(one.value, str) and one.value in _OF_A_PROCESS:
            return one.value
        elif isinstance(one, ast.Call):
            called = one.func.attr if isinstance(one.func, ast.Attribute) else getattr(one.func, "id", "")
            function = space.live.get(called)
            called = getattr(function, "__name__", called)
            is_followed = isinstance(value, str | int) and isinstance(function, FunctionType) and called not in seen
            if is_followed and (statement := space.located(function)):
                seen.add(called)
                waiting += [one.value for one in ast.walk(statement.node) if isinstance(one, ast.Return) and one.value]
                waiting += [one.test for one in ast.walk(statement.node) if isinstance(one, ast.If)]
            if called in _OF_A_MACHINE:
                return ast.unparse(one.func)
            waiting += [*one.args, *(word.value for word in one.keywords)] if called in _PASSING else []
            waiting += [one.func.value] if isinstance(one.func, ast.Attribute) and called not in _OF_DATA else []
        elif not isinstance(one, Definition | ast.Lambda):
            waiting += ast.iter_child_nodes(one)
    return ""


def _given_to(node: ast.AST, name: str) -> list[ast.AST]:
    """The expressions of a statement that decide what ``name`` holds; of an unpacked tuple its part alone."""
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)) if len(targets) == len(values):
            return [v for t, v in zip(targets, values, strict=True) if isinstance(t, ast.Name) and t.id == name]
        case ast.Import() | ast.ImportFrom() | ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return []
    children = list(ast.iter_child_nodes(node))
    blocks = [one for one in children if isinstance(one, ast.stmt | ast.ExceptHandler | ast.match_case)]
    within = [one for block in blocks for one in _given_to(block, name)]
    heads = [one for one in children if one not in blocks]
    stored = {
        one.id
        for head in heads
        for one in ast.walk(head)
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
    }
    return [*within, *heads] if within or name in stored else []


def faults_of_module(module: LocalModule, imported: list[tuple[str, object, str]], function: str) -> Iterator[str]:
    """What a local module looks up in vain, and what it, or an import of it, holds that its file does not say now.

    ``imported``: the names that import statements gave, what they hold, and where they stand.
    """
    space = module.space
    known = {*space.live, *space.binders, *BUILTINS, *OF_A_MODULE}
    has_star = any(one.source.rstrip().endswith("import *") for one in space.statements)
    used = [uses_of(statement.node, space.flags) for statement in space.statements]
    known |= {name for one in used for name in one.binds}
    for one in used if module.name in sys.modules or not has_star else []:
        for name, line in {**one.now, **one.later}.items():
            if name not in known:
                yield undefined(name, module.text.place(line), [*one.own, *known])
    held = [(name, value, module.text.origin) for name, value in space.live.items()] + imported
    for name, value, place in held:
        is_own = isinstance(value, FunctionType | type) and value.__module__ == module.name
        statement = space.located(value) if is_own else None
        is_changed = statement and any(one.is_changed for one in given_in(statement.node, value))
        if is_own and (is_changed or space.is_outdated(value)):
            yield outdated(name, place)
    changing = changed_within(module.text.tree)
    for name, binders in space.binders.items():
        value = space.live.get(name, ABSENT)
        is_atom = value is None or type(value) in (bool, int, float, str, bytes)
        if is_atom and name not in changing and not may_give(binders[-1].node, name, value):
            yield set_since(name, binders[-1].place(), function)


def no_value(name: str, place: str, why: NoValueError, value: object, function: str, what: str = "a name") -> str:
    """The fault of something that does not travel."""
    file = getattr(getattr(value, "__code__", None), "co_filename", None)
    origin = f" (its text is in {file}: import it from there)" if file and not file.startswith("<") else ""
    remedy = f"Build it inside {function}"
    if is_table(value):
        remedy = f"Give it as Run(inputs={{{name!r}: {name}}}), which lets it travel as a Parquet file"
    elif isinstance(value, ModuleType):
        remedy = "Import it inside the code that uses it"
    return f"{place}: {name!r} is {why}{origin}; {what} travels as its value, which may be made of {ALLOWED}. {remedy}"


def undefined(name: str, place: str, known: Iterable[str]) -> str:
    """The fault of a name that nothing binds."""
    if name in IPYTHON_ONLY:
        return of_ipython(name, place)
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.75)
    meant = f"; did you mean {near[0]!r}?" if near else "."
    return (
        f"{place}: {name!r} is not defined: a name must be bound in the function, in an executed cell or its file, "
        f"or be a builtin{meant} Correct it, or define or import it and run that cell before submitting"
    )


def of_a_machine(name: str, place: str, fact: str, function: str) -> str:
    """The fault of a value that holds for this machine or process alone."""
    return (
        f"{place}: {name!r} says what this machine or process is ({fact}), and a worker is another one. "
        f"Compute it inside {function}"
    )


def outdated(name: str, file: str) -> str:
    """The fault of a function or a class whose file was edited and not loaded again."""
    return (
        f"{file}: {name!r} is not what its file says now: the file was changed after it was imported, "
        "or something was set on it since. Restart the kernel, or use importlib.reload and run the import again; "
        "then submit again"
    )


def set_since(name: str, place: str, function: str) -> str:
    """The fault of a constant of a local module that other code has set."""
    return (
        f"{place}: {name!r} holds another value by now, and a worker imports this file as it is. "
        f"Set it inside {function}, or give it by Run(parameters={{...}})"
    )


def of_ipython(name: str, place: str) -> str:
    """The fault of a name that only a notebook has."""
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
