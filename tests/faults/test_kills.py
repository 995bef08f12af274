"""A training that is killed anywhere ends as if nothing had happened, bit for bit; ``make faults`` tries hundreds."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults import left
from tests.s3_servers import needed

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


@pytest.mark.parametrize(
    "training",
    [
        "with_trainer",
        "with_own_loop",
        pytest.param("to_the_best", marks=pytest.mark.slow),
        pytest.param("saving_the_best", marks=pytest.mark.slow),
        pytest.param("on_minio", marks=pytest.mark.slow),
    ],
)
def test_a_killed_training_ends_bit_for_bit_as_the_undisturbed_one(tmp_path, training):
    if training == "on_minio":
        needed("minio")
    (found,) = found_by(tmp_path, training, "kill", "0:1")
    assert left.faults(found) == []
    assert -9 in found["codes"][0]


@pytest.mark.parametrize("training", ["with_trainer", pytest.param("with_own_loop", marks=pytest.mark.slow)])
def test_a_training_that_was_told_to_stop_loses_no_step(tmp_path, training):
    (found,) = found_by(tmp_path, training, "stop", "1:2")
    assert left.faults(found) == []
    assert 143 in found["codes"][0]


def happened(**others):
    """A training of one rank and two steps that was stopped, and then ended well."""
    found = {"how": "stop", "drawn": [{}], "codes": [[143, 143], [0, 0]], "published": ["nothing", "model"]}
    return {**found, "steps": [[[1], [2]], [[1], [2]]], "num_steps": 2, "differs": [], **others}


@pytest.mark.parametrize(
    "fault",
    [
        {"differs": ["rank 1: draws"]},
        {"codes": [[143, -9], [0, 0]]},
        {"codes": [[143, 70], [0, 0]]},
        {"codes": [[145, 145], [0, 0]]},
        {"codes": [[143, 143], [0, 145]]},
        {"codes": [[0, 143], [0, 0]]},
        {"published": ["nothing", "result"]},
        {"steps": [[[1], [2]], [[1], [1, 2]]]},
        {"steps": [[[1], []], [[1], []]]},
    ],
)
def test_what_breaks_the_contract_is_told(fault):
    assert left.faults(happened()) == []
    assert len(left.faults(happened(**fault))) >= 1
