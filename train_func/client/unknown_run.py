"""The name of a run as it is given: whole, or a beginning that no other run has; where there is none, the nearest."""

import difflib
import re

from train_func.client.in_place import all_in_place, newest_of
from train_func.client.in_place_record import InPlace
from train_func.client.run_names import run_names
from train_func.errors import InvalidInput, JobNotFound
from train_func.run import NAME
from train_func.storage import Store
from train_func.text import listed

_POSSIBLE = re.compile(r"\w[\w.-]*")  # what may be meant as a name
SIMILAR = 5  # names that are shown of those that a store holds
MOST = 20  # the same of those that a beginning may mean


def whole_name(store: Store, given: object, asked: str, *, in_part: bool = True) -> str:
    """The name of the run that is meant: its whole name, or a beginning that no other run has.

    Args:
        asked: the function that was called, such as ``attach``.
        in_part: whether a beginning without a digit of the hash is enough.

    Raises:
        InvalidInput: it is no name, or several runs are named so.
        JobNotFound: none is.
    """
    if not isinstance(given, str) or not _POSSIBLE.fullmatch(given):
        raise InvalidInput(f"{asked} was given {given!r}; the name of a run is expected, such as job.name")
    if NAME.fullmatch(given) and store.names(given):  # without a look at all the others
        return given
    found = [name for name in run_names(store) if name.startswith(given)]
    of_part = [] if in_part else [name for name in found if len(given) <= name.rindex("-") + 1]
    if of_part and of_part == found:
        raise JobNotFound(
            f"{asked}({given!r}): the first digits of the last part of a name are expected too; {store.address} holds "
            f"{listed(found, MOST)}"
        )
    found = [name for name in found if name not in of_part]
    if len(found) > 1:
        one = "give one of these names, or more of it"
        raise InvalidInput(f"{asked}({given!r}): {len(found)} runs are named so: {listed(found, MOST)}; {one}")
    if not found:
        raise unknown_run(store, given, asked)
    return found[0]


def unknown_run(store: Store, name: str, asked: str) -> JobNotFound:
    """Args: ``asked`` is the function that was called, such as ``attach``, which takes names in place too."""
    if last := newest_of(store, name):
        return JobNotFound(f"{store.address} holds no run {name!r}; {_of_place(last)}")
    places = [held.name for held in all_in_place(store)[0]] if asked == "attach" else []
    nearest = difflib.get_close_matches(name, places, SIMILAR, cutoff=0)
    there = f"; models are in place as {listed(nearest, SIMILAR, show=repr)}" if nearest else ""
    return JobNotFound(
        f"{store.address} holds no run {name!r}; {_similar(name, run_names(store))}{there}. Another store is named by "
        f"{asked}(..., on=Local(store=...)), on=Cluster(store=...), TRAIN_FUNC_STORE or TRAIN_FUNC_HOME (--store of "
        "the command)"
    )


def _of_place(last: InPlace) -> str:
    """Why what was in place last under the name that was given is not what was asked for, and what to do."""
    if last.run:
        return (
            f"the model of {last.run} is in place under that name: name that run, or take the model from its place "
            f"with withdraw({last.name!r})"
        )
    before = f", that of {last.earlier[0]['run']}," if last.earlier else ""
    return f"the model that was in place under that name{before} was withdrawn at {last.promoted}"


def _similar(name: str, known: list[str]) -> str:
    nearest = ", ".join(difflib.get_close_matches(name, known, SIMILAR, cutoff=0))
    return f"it holds: {nearest or 'none'}" if len(known) <= SIMILAR else f"of its {len(known)} the nearest: {nearest}"
