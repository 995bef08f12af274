"""What is said of what cannot travel."""

from types import ModuleType

from train_func.client.source.values import ALLOWED, NoValueError
from train_func.tables import is_table

MAX_BYTES = 50_000_000
IPYTHON_ONLY = frozenset({"get_ipython", "display", "In", "Out", "__IPYTHON__"})


def undefined(name: str, place: str, near: list[str]) -> str:
    """The fault of a name that nothing binds."""
    if name in IPYTHON_ONLY:
        return of_ipython(name, place)
    meant = f"; did you mean {near[0]!r}?" if near else "."
    return (
        f"{place}: {name!r} is not defined: a name must be bound in the function, in an executed cell or its file, "
        f"or be a builtin{meant} Correct it, or define or import it and run that cell before submitting"
    )


def no_value(name: str, place: str, why: NoValueError, value: object, function: str) -> str:
    """The fault of a name that holds something that does not travel."""
    file = getattr(getattr(value, "__code__", None), "co_filename", None)
    origin = f" (its text is in {file}: import it from there)" if file and not file.startswith("<") else ""
    return (
        f"{place}: {name!r} is {why}{origin}; a name travels as its value, which may be made of {ALLOWED}. "
        f"{remedy(name, value, f'Build it inside {function}')}"
    )


def remedy(name: str, value: object, otherwise: str) -> str:
    """What to do with something that does not travel under that name."""
    if is_table(value):
        return f"Give it as Run(inputs={{{name!r}: {name}}}), which lets it travel as a Parquet file"
    return "Import it inside the code that uses it" if isinstance(value, ModuleType) else otherwise


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
