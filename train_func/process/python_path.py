"""The import path of a child process: one that starts with -P finds this package where this process has found it."""

import os
import sysconfig
from collections.abc import Mapping
from pathlib import Path


def python_path(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns PYTHONPATH for a child; without the variable, the child finds the package among the installed ones."""
    package = str(Path(__file__).parents[2])
    if package in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, (package, environment.get("PYTHONPATH"))))}
