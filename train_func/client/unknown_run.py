"""The name of a run as it is given: its whole name, or how the only one begins; where there is none, the nearest."""

import difflib
import re

from train_func.counted import listed
from train_func.errors import InvalidInput, JobNotFound
from train_func.run import NAME
from train_func.storage import Store

POSSIBLE = re.compile(r"\w[\w.-]*")  # what may be meant as a name
SIMILAR = 5  # names that are shown of those that a store holds


def whole_name(store: Store, given: str, asked: str) -> str:
    """The name of the run that is meant: the readable part and so much of the hash as tells it from others.

    Raises:
        InvalidInput: several runs are named so.
        JobNotFound: none is.
    """
    found = [name for name in _names(store) if name.startswith(given) and len(given) > name.rindex("-") + 1]
    if given in found or len(found) == 1:
        return given if given in found else found[0]
    if found:
        raise InvalidInput(f"{asked}({given!r}): several runs are named so: {listed(found)}; give one of these names")
    raise unknown_run(store, given, asked)


def unknown_run(store: Store, name: str, asked: str) -> JobNotFound:
    """Args: ``asked`` is the function that was called, such as ``attach``."""
    known = _names(store)
    return JobNotFound(
        f"{store.address} holds no run {name!r}; {_similar(name, known)}. Another store is named by "
        f"{asked}(name, on=Local(store=...)), on=Cluster(store=...), TRAIN_FUNC_STORE or TRAIN_FUNC_HOME"
    )


def _names(store: Store) -> list[str]:
    folders = (found.removesuffix("/") for found in store.names("") if found.endswith("/"))
    return [name for name in folders if NAME.fullmatch(name)]


def _similar(name: str, known: list[str]) -> str:
    nearest = ", ".join(difflib.get_close_matches(name, known, SIMILAR, cutoff=0))
    return f"it holds: {nearest or 'none'}" if len(known) <= SIMILAR else f"of its {len(known)} the nearest: {nearest}"
