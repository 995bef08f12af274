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


def found_by(folder, training, how, *given):
    """What happened for each seed or point; the program forks, and so runs apart from pytest's threads."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.kills", str(folder), "--training", training, "--how", how, *given],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def at(point, rank, nth):
    return {"point": point, "rank": rank, "part": "training", "nth": nth}


IN_STEP = at("backward", 1, 18)  # of 21, in the middle of an epoch
IN_SAVE = at("checkpoint file uploaded", 0, 8)  # the second of three files of the third checkpoint
IN_OWN_STEP = at("updated", 0, 18)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("training", "kills"),
    [("with_trainer", [IN_STEP, IN_SAVE]), ("with_own_loop", [IN_OWN_STEP])],
)
def test_a_killed_training_goes_on_behind_its_checkpoint_and_ends_bit_for_bit_as_undisturbed(tmp_path, training, kills):
    given = [word for point in kills for word in ("--drawn", json.dumps(point))]
    for found, point in zip(found_by(tmp_path, training, "kill", "--waits", *given), kills, strict=True):
        assert left.faults(found) == []
        assert found["marks"] == [True]
        assert found["codes"][0][point["rank"]] == -9
        assert found["saved"][0] > 1
        assert left.has_resumed(found)


@pytest.mark.slow
@pytest.mark.parametrize("training", ["to_the_best", "saving_the_best", "on_minio"])
def test_a_training_of_another_kind_that_is_killed_ends_as_the_undisturbed_one(tmp_path, training):
    if training == "on_minio":
        needed("minio")
    (found,) = found_by(tmp_path, training, "kill", "--seeds", "0:1")
    assert left.faults(found) == []


@pytest.mark.slow
@pytest.mark.parametrize("training", ["with_trainer", "with_own_loop"])
def test_a_training_that_was_told_to_stop_loses_no_step(tmp_path, training):
    (found,) = found_by(tmp_path, training, "stop", "--drawn", json.dumps(at("backward", 1, 5)))
    assert left.faults(found) == []
    assert 143 in found["codes"][0]
    assert left.has_resumed(found)


def happened(**others):
    """A training of two ranks and two steps that was stopped, and then ended well."""
    found = {"how": "stop", "drawn": [at("update", 1, 1)], "codes": [[143, 143], [0, 0]], "marks": [True]}
    found |= {"published": ["nothing", "model"], "saved": [1, 2], "restored": [[0, 0], [1, 1]]}
    return {**found, "steps": [[[1], [2]], [[1], [2]]], "num_steps": 2, "differs": [], **others}


def killed(**others):
    """The same, killed in step 2."""
    return happened(**{"how": "kill", "codes": [[145, -9], [0, 0]], "restored": [[0, None], [1, 1]], **others})


FAULTS = [
    (happened, {"differs": ["rank 1: draws"]}, ["rank 1: draws differs"]),
    (happened, {"codes": [[143, 70], [0, 0]]}, ["attempt 1 ended with [143, 70]"]),
    (happened, {"codes": [[143, 143], [0, 145]]}, ["attempt 2 ended with [0, 145]", "attempt 2 was not told"]),
    (happened, {"codes": [[145, 145], [0, 0]]}, ["attempt 1 was not told as stopped"]),
    (happened, {"published": ["nothing", "result"]}, ["rank 0 ended attempt 2 with 0 before the manifest"]),
    (happened, {"steps": [[[1], []], [[1], []]]}, ["rank 0 did the steps [1]", "rank 1 did the steps [1]"]),
    (killed, {"steps": [[[1], [2]], [[1], [1, 2]]]}, ["rank 1 did the steps [1, 2] in attempt 2, behind a checkpoint"]),
    (killed, {"saved": [0, 2]}, ["did the steps [2] in attempt 2, behind a checkpoint of step 0"] * 2),
    (killed, {"restored": [[0, None], [1, 0]]}, ["rank 1 did steps in attempt 2 without the checkpoint of step 1"]),
    (killed, {"marks": [False]}, ["rank 1 of attempt 1 did not come to 'update'"]),
    (killed, {"codes": [[-9, 145], [0, 0]]}, ["rank 1 of attempt 1 was to be killed at 'update' and ended with 145"]),
]


@pytest.mark.parametrize(("training", "fault", "words"), FAULTS)
def test_what_breaks_the_contract_is_told(training, fault, words):
    found = left.faults(training(**fault))
    assert len(found) == len(words) and all(of in said for of, said in zip(words, found, strict=True))


def test_a_training_that_begins_anew_has_not_resumed():
    assert left.has_resumed(killed())
    assert not left.has_resumed(killed(steps=[[[1], [1, 2]]] * 2, saved=[0, 2]))
