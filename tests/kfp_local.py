"""Pipelines on this machine by kfp's own runner: each step is a process of this interpreter."""

import contextlib
import importlib.util
import re
import warnings
from pathlib import Path

from kfp import local

PAGE = Path(__file__).parents[1] / "docs/cluster.md"


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


def documented_pipeline(folder: Path):
    """The pipeline of one's own in docs/cluster.md, as it stands there; kfp reads its source from a file."""
    (code,) = (
        code for code in re.findall(r"```python[^\n]*\n(.*?)```", PAGE.read_text(), re.S) if "@dsl.pipeline" in code
    )
    (folder / "documented.py").write_text(code)
    spec = importlib.util.spec_from_file_location("documented", folder / "documented.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.nightly
