"""Trackers: what MLflow, Weights & Biases, Trackio and TensorBoard write without a server is kept with the attempt.

Their variables: https://mlflow.org/docs/latest/api_reference/python_api/mlflow.environment_variables.html,
https://docs.wandb.ai/models/track/environment-variables and https://huggingface.co/docs/trackio/environment_variables.
The supervisor leads them to a folder of the pod, and keeps what they have written in FOLDERS. Loads no torch.
"""

import contextlib
import netrc
import shutil
from collections.abc import Mapping
from pathlib import Path

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
    with contextlib.suppress(OSError, netrc.NetrcParseError, RuntimeError):  # wandb login leaves its key there
        is_set = is_set or "api.wandb.ai" in netrc.netrc(environ.get("NETRC") or Path("~/.netrc").expanduser()).hosts
    return {} if is_set else {"WANDB_MODE": "dryrun"}
