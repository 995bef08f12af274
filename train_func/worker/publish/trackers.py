"""Trackers: what MLflow, Weights & Biases and Trackio write without a server of theirs is kept with the attempt.

Their variables: https://mlflow.org/docs/latest/api_reference/python_api/mlflow.environment_variables.html,
https://docs.wandb.ai/models/track/environment-variables and https://huggingface.co/docs/trackio/environment_variables.
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
from train_func.worker.rank.output import files_of


def begin(work_dir: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """An empty folder for trackers, and the variables that lead them there, unless ``environ`` leads them elsewhere."""
    folder = _of(work_dir)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    places = {
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}",  # newer versions refuse file://
        "WANDB_DIR": str(folder),
        "TRACKIO_DIR": str(folder / "trackio"),
    }
    return {name: place for name, place in places.items() if not environ.get(name)} | without_key(environ)


def without_key(environ: Mapping[str, str]) -> dict[str, str]:
    """What has Weights & Biases write files where it has no key; it would end the function otherwise."""
    is_set = any(environ.get(name) for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"))
    return {} if is_set or _has_login(environ) else {"WANDB_MODE": "dryrun"}


def _has_login(environ: Mapping[str, str]) -> bool:
    """Whether ``wandb login`` has left its key on this machine, which it does in the file of netrc."""
    try:
        hosts = netrc.netrc(environ.get("NETRC") or Path("~/.netrc").expanduser()).hosts
    except (OSError, netrc.NetrcParseError, RuntimeError):
        return False
    return "api.wandb.ai" in hosts


def keep(store: Store, keys: AttemptKeys, work_dir: Path) -> None:
    """Uploads what they have written, and says so; never raises for the store."""
    folder = _of(work_dir)
    names = files_of(folder) if folder.is_dir() else []
    try:
        for name in names:
            store.upload(f"{keys.trackers}/{name}", folder / name)
    except (StorageFailed, OSError) as failure:
        reporting.note(f"what trackers wrote is not all kept: {failure}")
    else:
        if names:
            reporting.note(f"{counted(len(names), 'file')} of trackers, kept in {store.address}/{keys.trackers}/")


def _of(work_dir: Path) -> Path:
    return work_dir / "trackers"
