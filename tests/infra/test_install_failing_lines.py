"""A line of install.sh that fails ends what it is part of: nothing is rendered, fetched or told in part."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MISSING_PREREQUISITE, FAILED = 3, 4
KUBECTL = """#!/usr/bin/env bash
case "$*" in
    *"get-contexts"*) echo here ;;
    *"get configmap train-func-install"*) printf 'profile=generic\\ns3=seaweedfs\\nstorage=none\\n' ;;
    *"get statefulset/myminio"*) exit 1 ;;
    *"get "*"/"*) printf '01/1 image:1' ;;
esac
"""


def install(command, folder, **programs):
    """install.sh with kubectl and ``programs`` in front of the real ones."""
    for name, text in {"kubectl": KUBECTL, **programs}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    given = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "HOME": str(folder),
        "TRAIN_FUNC_IMAGE": "registry.example/one:1",
    }
    return subprocess.run([ROOT / "install.sh", *command], env=given, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("broken", ["cp", "sed"])
def test_a_component_of_which_one_line_failed_is_reported_and_not_installed(tmp_path, broken):
    condition = 'case "$*" in *jobs/*|*infra/jobs*) echo disk full >&2; exit 1 ;; esac'
    fails = f'#!/bin/sh\n{condition}\nexec {shutil.which(broken)} "$@"\n'
    done = install(["doctor", "--only", "jobs"], tmp_path, **{broken: fails})
    assert done.returncode == MISSING_PREREQUISITE
    findings = [line.split() for line in done.stdout.splitlines()]
    assert ["FAIL", "jobs", "disk", "full"] in findings


def test_a_status_that_the_cluster_did_not_tell_is_a_failure(tmp_path):
    done = install(["status"], tmp_path)
    assert done.returncode == FAILED
    assert "statefulset/myminio" in done.stderr
    assert "s3 " not in done.stdout
