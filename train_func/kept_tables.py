"""Kept tables: for how long a saved table is needed, which is by processes that hold its Run, and by submitted runs.

Below ``inputs/<SHA-256>/`` of TRAIN_FUNC_HOME each run that was submitted with the table has a file, and each process
that has made a Run of it holds a lock, which the kernel lets go of when the process dies. Without either it is removed
when a process that has saved tables ends, or saves another one. Where files cannot be locked, tables stay.
"""

import atexit
import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from train_func import lock
from train_func.home import home

_HELD, _ALL = ".held", ".lock"
_held: dict[Path, int] = {}  # the descriptors of the locks of this process, by folder


def folder() -> Path:
    """Where tables are kept."""
    return home(os.environ) / "inputs"


@contextlib.contextmanager
def added(to: Path) -> Iterator[None]:
    """While the table is put into the folder ``to``, no other process removes it; this one needs it from then on."""
    with _alone(to.parent) as is_alone:
        to.mkdir(exist_ok=True)
        yield
        if is_alone:
            before = _held.pop(to, None)
            _held[to] = lock.share(to / _HELD)  # anew each time: a user may have removed the folder meanwhile
            if before is not None:
                os.close(before)
            _sweep(to.parent)


def is_one(address: str) -> bool:
    """Whether an address is that of a saved table."""
    return Path(address).parent.parent.resolve() == folder().resolve()  # either may lead through a link


def keep(store: str, run: str, addresses: Iterable[object]) -> list[Path]:
    """Notes that a run in a store needs those of the files that are saved tables; the notes that are new."""
    found = {path.parent for path in map(Path, map(str, addresses)) if is_one(str(path))}
    new = [note for own in sorted(found) if not (note := own / _note(store, run)).exists()]
    for note in new:
        note.write_text(f"{run} in {store}\n")
    return new


def of_run(store: str, run: str) -> list[Path]:
    """The tables that no other run needs."""
    notes = [note for note in folder().glob(f"*/{_note(store, run)}") if _notes(note.parent) == [note]]
    return [path for note in notes for path in note.parent.glob("*.parquet")]


def release(store: str, run: str) -> None:
    """The run needs its tables no more: those that no other one needs go, or go with the process that holds a Run."""
    with _alone(folder()) as is_alone:
        for note in folder().glob(f"*/{_note(store, run)}") if is_alone else ():
            note.unlink(missing_ok=True)
        if is_alone:
            _sweep(folder())


def _note(store: str, run: str) -> str:
    return f"run-{hashlib.sha256(f'{store} {run}'.encode()).hexdigest()[:16]}"


def _notes(of: Path) -> list[Path]:
    return sorted(of.glob("run-*"))


@contextlib.contextmanager
def _alone(inputs: Path) -> Iterator[bool]:
    """Whether this process alone changes what is kept there; False where files cannot be locked."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock.hold(inputs / _ALL))
        except (OSError, ImportError):
            yield False
        else:
            yield True


def _sweep(inputs: Path) -> None:
    """Removes the tables that nothing needs; what earlier versions have kept, without a lock, stays."""
    for held in inputs.glob(f"*/{_HELD}"):
        if not _notes(held.parent) and (free := lock.take(held, 0)) is not None:
            lock.release(free)
            shutil.rmtree(held.parent, ignore_errors=True)


@atexit.register
def _leave() -> None:
    """A process that was forked shares the locks of this one: closing its descriptors does not let go of them."""
    folders = {own.parent for own in _held}
    for descriptor in _held.values():
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held.clear()
    for inputs in folders:
        with contextlib.suppress(OSError), _alone(inputs) as is_alone:
            if is_alone:
                _sweep(inputs)
