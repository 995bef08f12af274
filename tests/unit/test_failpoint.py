"""Failpoints are off in production: no manifest arms one, and no pod gets one that is armed here."""

from pathlib import Path

import pytest

from train_func import failpoint
from train_func.client.local.worker import machine_environment

ARMED = '{"point": "checkpoint uploaded"}'
GOLDEN = Path(__file__).parents[1] / "golden"


def test_one_that_is_armed_here_reaches_no_worker_of_local():
    assert failpoint.VARIABLE not in machine_environment({failpoint.VARIABLE: ARMED, "PATH": "/usr/bin"})


@pytest.mark.parametrize("manifest", sorted(GOLDEN.glob("*.yaml")), ids=lambda path: path.stem)
def test_no_manifest_arms_one(manifest):
    text = manifest.read_text()
    assert "name: TRAIN_FUNC_STORE" in text
    assert "FAILPOINT" not in text
