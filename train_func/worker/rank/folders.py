"""Folders for files of the function: those of each rank, and those of experiment trackers.

The files of rank 0 are published when the function ends well. MLflow, Weights & Biases, Trackio and TensorBoard write
without a server: their variables name a folder of the pod, and the supervisor stores it with the attempt:
https://mlflow.org/docs/latest/api_reference/python_api/mlflow.environment_variables.html,
https://docs.wandb.ai/models/track/environment-variables and https://huggingface.co/docs/trackio/environment_variables.
Loads no torch.
"""

import contextlib
import netrc
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from train_func.errors import StorageFailed
from train_func.storage import Store
from train_func.text import counted
from train_func.wire.result import name_fault
from train_func.worker.rank import reporting

VARIABLE = "TRAIN_FUNC_OUTPUT"
TRACKERS = "trackers"
RUNS = "runs"
FOLDERS = (RUNS, TRACKERS)  # where a Session leads TensorBoard, and where the others are led


def begin(work_dir: Path, rank: int) -> Path:
    """Makes an empty folder for the rank, and returns it."""
    folder = rank_folder(work_dir, rank)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def rank_folder(work_dir: Path, rank: int) -> Path:
    """Returns the folder for files of the rank."""
    return work_dir / "outputs" / str(rank)


def files() -> list[str]:
    """Returns the names of this rank's files so far."""
    folder = os.environ.get(VARIABLE)
    return files_of(Path(folder)) if folder else []


def files_of(folder: Path) -> list[str]:
    """Returns the paths of the files in the folder and below it, from the folder and sorted."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def take(folder: Path, into: Path, taken: set[str]) -> list[str]:
    """Moves files, and the targets of links, into another folder; returns the names of files that stay.

    Names in ``taken`` stay, because they exist there, and so do names that a published model reserves.
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
    """Returns the names of links in the folder to another folder or to nothing, which no store can hold."""
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_symlink() and not path.is_file()
    )


def keep(store: Store, prefix: str, folder: Path, owner: str) -> None:
    """Uploads files that are not published, with a note; raises nothing if the store fails.

    ``owner``: the owner of the files, in words.
    """
    if not (names := files_of(folder)):
        return
    try:
        for name in names:
            store.upload(f"{prefix}/{name}", folder / name)
    except (StorageFailed, OSError) as failure:
        reporting.note(f"files of {owner} are not all kept: {failure}")
    else:
        reporting.note(f"not published: {counted(len(names), 'file')} of {owner}, kept in {store.address}/{prefix}/")


def begin_trackers(work_dir: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Makes an empty folder for trackers; returns the variables that name it, without those that are set already."""
    for name in FOLDERS:  # an earlier attempt in this pod has kept what lies there
        shutil.rmtree(work_dir / name, ignore_errors=True)
    folder = work_dir / TRACKERS
    folder.mkdir(parents=True)
    places = {
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}",  # newer versions refuse file://
        "WANDB_DIR": str(folder),
        "TRACKIO_DIR": str(folder / "trackio"),
    }
    return {name: place for name, place in places.items() if not environ.get(name)} | without_key(environ)


def without_key(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables for Weights & Biases to write files if it has no key, instead of ending the function."""
    is_set = any(environ.get(name) for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"))
    with contextlib.suppress(OSError, netrc.NetrcParseError, RuntimeError):  # wandb login leaves its key there
        is_set = is_set or "api.wandb.ai" in netrc.netrc(environ.get("NETRC") or Path("~/.netrc").expanduser()).hosts
    return {} if is_set else {"WANDB_MODE": "dryrun"}
