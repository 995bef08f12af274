"""Failpoints are off in production: no manifest arms one, and no pod gets one that is armed here."""

from pathlib import Path

import pytest

from train_func import failpoint
from train_func.client.twin.substitutes import image_environment

ARMED = '{"point": "checkpoint uploaded"}'
GOLDEN = Path(__file__).parents[1] / "golden"


def test_without_the_variable_a_point_counts_nothing_and_ends_nothing(monkeypatch):
    monkeypatch.delenv(failpoint.VARIABLE, raising=False)
    before = failpoint.passed()
    failpoint.reach("checkpoint uploaded")
    assert failpoint.passed() == before


def test_with_the_variable_it_counts(monkeypatch):
    monkeypatch.setenv(failpoint.VARIABLE, "[]")
    before = failpoint.passed().get("a point of this test", 0)
    failpoint.reach("a point of this test")
    assert failpoint.passed()["a point of this test"] == before + 1


def test_one_that_is_armed_here_reaches_no_worker_of_the_twin():
    assert failpoint.VARIABLE not in image_environment({failpoint.VARIABLE: ARMED, "PATH": "/usr/bin"})


@pytest.mark.parametrize("manifest", sorted(GOLDEN.glob("*.yaml")), ids=lambda path: path.stem)
def test_no_manifest_arms_one(manifest):
    text = manifest.read_text()
    assert "name: TRAIN_FUNC_STORE" in text
    assert "FAILPOINT" not in text
