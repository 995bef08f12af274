"""Pipelines on this machine by kfp's own runner: each step is a process of this interpreter."""

import contextlib
import warnings
from pathlib import Path

from kfp import local


@contextlib.contextmanager
def steps_in(folder: Path):
    """Steps keep their artefacts below the folder."""
    local.init(local.SubprocessRunner(use_venv=False), pipeline_root=str(folder))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*non-Python base image", category=RuntimeWarning)
        yield


def folder_of(root: Path, step: str) -> Path:
    """Where the newest step of that name has left its artefacts."""
    return max(root.glob(f"*/{step}"), key=lambda path: path.stat().st_mtime)
