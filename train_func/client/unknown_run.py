"""The error for a name that no run of a store has: it lists the nearest names that there are."""

import difflib
import re

from train_func.errors import JobNotFound
from train_func.run import NAME
from train_func.storage import Store

POSSIBLE = re.compile(r"\w[\w.-]*")  # what may be meant as a name
SIMILAR = 5  # names that are shown of those that a store holds


def unknown_run(store: Store, name: str, asked: str) -> JobNotFound:
    """Args: ``asked`` is the function that was called, such as ``attach``."""
    known = [found.removesuffix("/") for found in store.names("") if NAME.fullmatch(found.removesuffix("/"))]
    return JobNotFound(
        f"{store.address} holds no run {name!r}; {_similar(name, known)}. Another store is named by "
        f"{asked}(name, on=Local(store=...)), on=Cluster(store=...), TRAIN_FUNC_STORE or TRAIN_FUNC_HOME"
    )


def _similar(name: str, known: list[str]) -> str:
    nearest = ", ".join(difflib.get_close_matches(name, known, SIMILAR, cutoff=0))
    return f"it holds: {nearest or 'none'}" if len(known) <= SIMILAR else f"of its {len(known)} the nearest: {nearest}"
