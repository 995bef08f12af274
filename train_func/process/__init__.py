"""Processes of this machine: trees, import path, locks between them, calls that end in time, failpoints of tests."""

import os
import sysconfig
from collections.abc import Mapping
from pathlib import Path


def python_path(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the PYTHONPATH by which a child that starts with -P finds this package; {} if it is installed."""
    package = str(Path(__file__).parents[2])
    if package in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, (package, environment.get("PYTHONPATH"))))}
