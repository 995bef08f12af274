"""A checkout with the Makefile, the notebooks and this interpreter, and nothing to set up."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = {"infra/environment.sh": "touch set-up", ".venv/bin/python": f'exec {sys.executable} "$@"'}


@pytest.fixture
def checkout(tmp_path):
    folder = tmp_path / "checkout"
    for path in ("Makefile", "infra/run_notebook.py", "notebooks"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (ROOT / path).is_dir() else shutil.copy)(ROOT / path, folder / path)
    for path, text in SCRIPTS.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (folder / path).chmod(0o755)
    return folder


@pytest.fixture
def make(checkout):
    """Calls it there with variables of its command line, and with others that the shell has exported."""

    def make(*given, **exported):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "TRAIN_FUNC_"))}
        environment = {**kept, "PYTHONPATH": str(ROOT), **exported}
        command = ["make", "-s", *given]
        return subprocess.run(
            command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=300, check=False
        )

    return make
