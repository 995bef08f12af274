"""Trackers: what MLflow, Weights & Biases, Trackio and TensorBoard write without a server is kept with the attempt.

Their variables: https://mlflow.org/docs/latest/api_reference/python_api/mlflow.environment_variables.html,
https://docs.wandb.ai/models/track/environment-variables and https://huggingface.co/docs/trackio/environment_variables.
The supervisor leads them to a folder of the pod, and keeps what they have written there. Loads no torch.
"""

import netrc
import shutil
from collections.abc import Mapping
from pathlib import Path

from train_func.errors import StorageFailed
from train_func.layout import AttemptKeys
from train_func.storage import Store
from train_func.text import counted
from train_func.worker.rank import reporting

TRACKERS = "trackers"
RUNS = "runs"
FOLDERS = (RUNS, TRACKERS)  # where a Session leads TensorBoard, and where the others are led


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
    files = sorted(path for name in FOLDERS for path in (folder / name).rglob("*") if path.is_file())
    try:
        for path in files:
            store.upload(f"{keys.prefix}/{path.relative_to(folder).as_posix()}", path)
    except (StorageFailed, OSError) as failure:
        reporting.note(f"files of trackers are not all kept: {failure}")
        return
    if files:
        names = " and ".join(name for name in FOLDERS if (folder / name).exists())
        where = f"{store.address}/{keys.prefix}/ ({names})"
        reporting.note(f"trackers wrote {counted(len(files), 'file')}, kept in {where}")
