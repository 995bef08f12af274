"""What is said of what cannot travel, and what says which machine or process this is."""

import ast
import difflib
from collections.abc import Iterable
from types import ModuleType

from train_func.client.source.cells import Space
from train_func.client.source.names import Definition
from train_func.client.source.values import ALLOWED, NoValueError
from train_func.tables import is_table

IPYTHON_ONLY = frozenset({"get_ipython", "display", "In", "Out", "__IPYTHON__"})
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


def of_this_machine(node: ast.AST, space: Space) -> str:
    """What in an expression says which machine or process this is; "" for nothing. Follows names, not calls."""
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
            called = getattr(space.live.get(called), "__name__", called)
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
    stored = {one.id for head in heads for one in ast.walk(head) if isinstance(one, ast.Name) and _is_stored(one)}
    return [*within, *heads] if within or name in stored else []


def _is_stored(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


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
        f"{file}: {name!r} is not what its file says now: the file was changed after it was imported. "
        "Restart the kernel, or use importlib.reload and run the import again; then submit again"
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
