"""Output: the folder of each rank for files of its own; those of rank 0 are published when the function ends well."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from train_func.errors import StorageFailed
from train_func.layout import AttemptKeys
from train_func.result import name_fault
from train_func.storage import Store
from train_func.text import counted
from train_func.worker.rank import reporting

VARIABLE = "TRAIN_FUNC_OUTPUT"


def begin(work_dir: Path, rank: int) -> Path:
    """The folder of a rank, empty."""
    folder = of_rank(work_dir, rank)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def of_rank(work_dir: Path, rank: int) -> Path:
    """Where the rank may leave files."""
    return work_dir / "outputs" / str(rank)


def files() -> list[str]:
    """What this rank has left so far, by name."""
    folder = os.environ.get(VARIABLE)
    return files_of(Path(folder)) if folder else []


def files_of(folder: Path) -> list[str]:
    """The names of its files from the folder, sorted."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def take(folder: Path, into: Path, taken: set[str]) -> list[str]:
    """Moves files into another folder, and for a link what it leads to; returns the names of those that stay.

    Those in ``taken`` are there already, and a name may be one that a published model keeps for other use.
    """
    stay = []
    for name in sorted(files_of(folder), key=lambda name: not (folder / name).is_symlink()):  # before a target moves
        own = folder / name
        if name in taken or name_fault(name, taken):
            stay.append(name)
            continue
        (into / name).parent.mkdir(parents=True, exist_ok=True)
        if own.is_symlink():
            link_or_copy(own.resolve(), into / name)
            own.unlink()
        else:
            own.rename(into / name)
        taken.add(name)
    return sorted(stay)


def links_to_no_file(folder: Path) -> list[str]:
    """The names of links in the folder that lead to another folder or to nothing, which no store can hold."""
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_symlink() and not path.is_file()
    )


def link_or_copy(old: Path, new: Path) -> None:
    """The same file in another place, as a hard link where there can be one."""
    new.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(old, new)
    except OSError:
        shutil.copyfile(old, new)


def keep(store: Store, keys: AttemptKeys, work_dir: Path, ranks: Sequence[int]) -> None:
    """Keeps with the attempt what ranks have left beside what is published, and says so; never raises for the store."""
    for rank in ranks:
        folder, prefix = of_rank(work_dir, rank), f"{keys.output}/rank-{rank}"
        if not (names := files_of(folder)):
            continue
        try:
            for name in names:
                store.upload(f"{prefix}/{name}", folder / name)
        except (StorageFailed, OSError) as failure:
            reporting.note(f"files that rank {rank} has left are not all kept: {failure}")
        else:
            kept = f"{counted(len(names), 'file')} of rank {rank}, kept in {store.address}/{prefix}/"
            reporting.note(f"not published: {kept}")
