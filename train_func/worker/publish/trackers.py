"""Trackers: what MLflow, Weights & Biases, Trackio and TensorBoard write without a server is kept with the attempt.

Their variables: https://mlflow.org/docs/latest/api_reference/python_api/mlflow.environment_variables.html,
https://docs.wandb.ai/models/track/environment-variables and https://huggingface.co/docs/trackio/environment_variables.
The supervisor keeps what any function has written; a Session what its Trainers have, also without a supervisor. Loads
no torch.
"""

import netrc
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from train_func.errors import StorageFailed
from train_func.layout import AttemptKeys
from train_func.storage import Store
from train_func.storage.retry import call_with_timeout
from train_func.text import counted
from train_func.worker.rank import reporting

TRACKERS = "trackers"
FOLDERS = ("runs", TRACKERS)  # where transformers lets TensorBoard write, and where the others are led


def begin(work_dir: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Makes an empty folder for trackers; returns the variables that lead them there, less those that are set."""
    folder = work_dir / TRACKERS
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    places = {
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}",  # newer versions refuse file://
        "WANDB_DIR": str(folder),
        "TRACKIO_DIR": str(folder / "trackio"),
    }
    return {name: place for name, place in places.items() if not environ.get(name)} | without_key(environ)


def without_key(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns what makes Weights & Biases write files where it has no key; it would end the function otherwise."""
    is_set = any(environ.get(name) for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"))
    return {} if is_set or _has_login(environ) else {"WANDB_MODE": "dryrun"}


def _has_login(environ: Mapping[str, str]) -> bool:
    """Whether ``wandb login`` has left its key on this machine, which it does in the file of netrc."""
    try:
        hosts = netrc.netrc(environ.get("NETRC") or Path("~/.netrc").expanduser()).hosts
    except (OSError, netrc.NetrcParseError, RuntimeError):
        return False
    return "api.wandb.ai" in hosts


def keep(store: Store, keys: AttemptKeys, folder: Path) -> None:
    """Uploads what they have written beneath the folder, and says so; never raises for the store."""
    try:
        line = _upload(store, keys, folder)
    except (StorageFailed, OSError) as failure:
        line = f"files of trackers are not all kept: {failure}"
    if line:
        reporting.note(line)


def _upload(store: Store, keys: AttemptKeys, folder: Path) -> str:
    """Returns a line about what is kept; empty if nothing was written."""
    files = sorted(path for name in FOLDERS for path in (folder / name).rglob("*") if path.is_file())
    for path in files:
        store.upload(f"{keys.prefix}/{path.relative_to(folder).as_posix()}", path)
    names = " and ".join(name for name in FOLDERS if (folder / name).exists())
    if not files:
        return ""
    return f"trackers wrote {counted(len(files), 'file')}, kept in {store.address}/{keys.prefix}/ ({names})"


@contextmanager
def writes_to(folder: Path) -> Iterator[None]:
    """Within, trackers write beneath the folder, unless the environment of the rank leads them elsewhere."""
    variables = begin(folder, os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)


def keep_of_trainers(trainers: Iterable[Any], store: Store, keys: AttemptKeys, folder: Path, seconds: float) -> str:
    """Uploads what Trainers of a Session wrote, for ``seconds`` at most; returns a line about it, empty for nothing.

    Never raises: how a training ended does not depend on its diary.
    """

    def upload() -> str:
        try:  # TensorBoard's writer, which a training that fails does not close, writes what it holds
            for trainer in trainers:
                for callback in trainer.callback_handler.callbacks:
                    if writer := getattr(callback, "tb_writer", None):
                        writer.flush()
        finally:  # a broken writer keeps nothing else from being uploaded
            line = _upload(store, keys, folder)
        return line

    try:
        return call_with_timeout(seconds, upload)
    except Exception as error:
        return f"files of trackers are not all kept: {type(error).__name__}: {error}"
