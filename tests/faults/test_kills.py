"""A training that is killed anywhere ends as if nothing had happened, bit for bit; ``make faults`` tries hundreds."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT = 1200  # seconds; only a hang comes near it


def found_by(folder, training, how, seeds):
    """What happened for each seed; the program forks, and so runs apart from pytest's threads."""
    given = ["--training", training, "--how", how, "--seeds", seeds]
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.kills", str(folder), *given],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("training", ["with_trainer", "to_the_best", "with_own_loop"])
def test_a_killed_training_ends_bit_for_bit_as_the_undisturbed_one(tmp_path, training):
    found = found_by(tmp_path, training, "kill", "0:3")
    assert [of["differs"] for of in found] == [[]] * 3
    assert all(-9 in of["codes"][0] for of in found)


@pytest.mark.parametrize("training", ["with_trainer", "with_own_loop"])
def test_a_training_that_was_told_to_stop_loses_no_step(tmp_path, training):
    found = found_by(tmp_path, training, "stop", "10:13")
    for of in found:
        assert of["differs"] == []
        assert 143 in of["codes"][0]
        done = [step for attempt in of["steps"] for step in attempt]
        assert done == list(range(1, 22)), of
