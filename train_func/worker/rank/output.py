"""Output: the folder of each rank for files of its own; those of rank 0 are published when the function ends well."""

import os
import shutil
from pathlib import Path

from train_func.errors import StorageFailed
from train_func.result import name_fault
from train_func.storage import Store
from train_func.text import counted
from train_func.worker.rank import reporting

VARIABLE = "TRAIN_FUNC_OUTPUT"


def begin(work_dir: Path, rank: int) -> Path:
    """Makes the folder of a rank, empty, and returns it."""
    folder = of_rank(work_dir, rank)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def of_rank(work_dir: Path, rank: int) -> Path:
    """Returns the folder in which the rank may leave files."""
    return work_dir / "outputs" / str(rank)


def files() -> list[str]:
    """Returns the names of the files that this rank has left so far."""
    folder = os.environ.get(VARIABLE)
    return files_of(Path(folder)) if folder else []


def files_of(folder: Path) -> list[str]:
    """Returns the names of its files from the folder, sorted."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def take(folder: Path, into: Path, taken: set[str]) -> list[str]:
    """Moves files into another folder, and for a link what it leads to; returns the names of those that stay.

    Those in ``taken`` are there already, and a name may be one that a published model keeps for other use.
    """
    stay = []
    for name in sorted(files_of(folder), key=lambda name: not (folder / name).is_symlink()):  # before a target moves
        path = folder / name
        if name in taken or name_fault(name, taken):
            stay.append(name)
            continue
        (into / name).parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink():
            try:
                os.link(path.resolve(), into / name)
            except OSError:
                shutil.copyfile(path, into / name)
            path.unlink()
        else:
            path.rename(into / name)
        taken.add(name)
    return sorted(stay)


def links_to_no_file(folder: Path) -> list[str]:
    """The names of links in the folder that lead to another folder or to nothing, which no store can hold."""
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_symlink() and not path.is_file()
    )


def keep(store: Store, prefix: str, folder: Path, of: str) -> None:
    """Uploads what lies in the folder and nothing publishes, and says so; never raises for the store.

    ``of``: whose files they are, in words.
    """
    if not (names := files_of(folder)):
        return
    try:
        for name in names:
            store.upload(f"{prefix}/{name}", folder / name)
    except (StorageFailed, OSError) as failure:
        reporting.note(f"files of {of} are not all kept: {failure}")
    else:
        reporting.note(f"not published: {counted(len(names), 'file')} of {of}, kept in {store.address}/{prefix}/")
