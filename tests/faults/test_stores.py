"""A store that is full, read-only or away while a training saves to it: the training goes on, or from what it has.

So does one that is killed.
"""

import json
import re

import pytest

from tests.faults.attempts import attempts, first_step, output, result
from tests.mounts import needs_mount, run_on_disk
from tests.s3_servers import s3_server
from tests.tcp_proxy import Cut, tcp_proxy
from train_func.wire.exits import FULL, PERMISSION

SPOILED, HEALED, STEPS = 5, 12, 21
ON_A_DISK = """
import json, subprocess, sys
from pathlib import Path
from tests.faults import forks, trainings
store, given = Path(sys.argv[1]), json.loads(sys.argv[2])
codes = []
for number, each in enumerate(given["attempts"], 1):
    subprocess.run(each.pop("before", "true"), shell=True, check=True)
    codes.append(forks.attempt(trainings.with_trainer, number, 2, store.parent, **each))
print(json.dumps(codes))
"""
SPOILS = {
    "full": ("dd if=/dev/zero of={store}/filler bs=64k 2>/dev/null || true", "rm {store}/filler", FULL),
    # Refused as long as a file is open for writing, by the save that is under way.
    "read-only": (
        "for i in $(seq 600); do mount -o remount,ro {store} && break; sleep 0.05; done",
        "mount -o remount,rw {store}",
        PERMISSION,
    ),
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    assert attempts(folder, (2, None))[0] == [0, 0]
    return results(folder)


def results(folder):
    """Of both ranks, which have the same weights."""
    found = [result(folder, rank) for rank in range(2)]
    assert found[0]["weights"] == found[1]["weights"]
    return found


def on_a_disk(folder, *of):
    """Exit codes of attempts whose store is a disk of its own."""
    (folder / "store").mkdir()
    return json.loads(run_on_disk(ON_A_DISK, folder / "store", "32m", json.dumps({"attempts": of}))[-1])


def steps_saved(text):
    return [int(step) for step in re.findall(r"saved the checkpoint of step (\d+) ", text)]


def most_at_once(text):
    return max(int(number) for number in re.findall(r"^(\d+) saves are under way$", text, re.MULTILINE))


def check_went_on(folder, undisturbed):
    """The first attempt has ended as if nothing had happened, with saves before and after."""
    text = output(folder, 1)
    assert results(folder) == undisturbed
    assert "was not saved: " in text
    saved = steps_saved(text)
    assert min(saved) <= SPOILED
    assert max(saved) > HEALED
    assert most_at_once(text) <= 1


@pytest.mark.parametrize(
    "killed",
    [
        {"point": "checkpoint file uploaded", "rank": 0, "nth": 8},  # the second of three files of the third checkpoint
        {"point": "backward", "rank": 1, "nth": 18},  # in the middle of an epoch
    ],
    ids=["in a save", "in a step"],
)
def test_a_training_that_is_killed_goes_on_from_the_last_whole_save_and_ends_as_if_undisturbed(
    tmp_path, undisturbed, killed
):
    """tests/faults/test_kills.py has other points, and compares what is published too."""
    codes = attempts(tmp_path, (2, {**killed, "attempt": 1}), (2, None), waits=True)
    assert (codes[0][killed["rank"]], codes[1]) == (-9, [0, 0])
    assert first_step(output(tmp_path, 2)) == max(steps_saved(output(tmp_path, 1))) + 1
    assert results(tmp_path) == undisturbed


@needs_mount
@pytest.mark.parametrize("how", ["full", pytest.param("read-only", marks=pytest.mark.slow)])
def test_a_disk_that_cannot_be_written_for_a_while_costs_only_the_saves_meanwhile(tmp_path, undisturbed, how):
    spoil, heal, _ = (of if isinstance(of, int) else of.format(store=tmp_path / "store") for of in SPOILS[how])
    assert on_a_disk(tmp_path, {"spoils": {SPOILED: spoil, HEALED: heal}, "waits": True}) == [[0, 0]]
    check_went_on(tmp_path, undisturbed)


@pytest.mark.slow
@needs_mount
@pytest.mark.parametrize("how", SPOILS)
def test_a_training_that_cannot_publish_is_gone_on_with_from_its_last_checkpoint(tmp_path, undisturbed, how):
    spoil, heal, code = (of if isinstance(of, int) else of.format(store=tmp_path / "store") for of in SPOILS[how])
    codes = on_a_disk(tmp_path, {"spoils": {SPOILED: spoil}, "waits": True}, {"before": heal})
    assert codes[0][0] == code
    assert codes[1] == [0, 0]
    assert first_step(output(tmp_path, 2)) == max(steps_saved(output(tmp_path, 1))) + 1
    assert results(tmp_path) == undisturbed


@pytest.mark.slow
def test_a_folder_that_is_away_for_a_while_costs_only_the_saves_meanwhile(tmp_path, undisturbed):
    store = tmp_path / "store"
    (real := tmp_path / "real").mkdir()
    store.symlink_to(real)
    spoil, heal = (f"ln -s {target} {store}-new && mv -T {store}-new {store}" for target in (store, real))  # a loop
    given = {"spoils": {SPOILED: spoil, HEALED: heal}, "waits": True}
    assert attempts(tmp_path, (2, None), **given)[0] == [0, 0]
    check_went_on(tmp_path, undisturbed)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with s3_server("minio", tmp_path_factory.mktemp("minio")) as running:
        yield running


@pytest.fixture
def away(tmp_path, server, monkeypatch):
    """A file: while it is there, the server is away."""
    with tcp_proxy(server.port) as proxy:

        def cut_while_away(data):
            if (tmp_path / "away").exists():
                raise Cut
            return data

        proxy.on_request = cut_while_away
        for name, value in {**server.environment, "AWS_ENDPOINT_URL_S3": proxy.endpoint}.items():
            monkeypatch.setenv(name, value)
        yield tmp_path / "away"


@pytest.mark.parametrize("seconds", [0.1, pytest.param(10, marks=pytest.mark.slow)])
def test_a_server_that_is_away_for_a_while_is_saved_to_again(tmp_path, undisturbed, server, away, seconds):
    """Slow: for a minute."""
    meanwhile = dict.fromkeys(range(SPOILED + 1, HEALED), f"sleep {seconds}")
    spoils = {SPOILED: f"touch {away}", **meanwhile, HEALED: f"rm {away}", HEALED + 3: "sleep 10"}
    store = f"s3://{server.bucket}/{seconds}"
    assert attempts(tmp_path, (2, None), store=store, spoils=spoils)[0] == [0, 0]
    text = output(tmp_path, 1)
    assert results(tmp_path) == undisturbed
    assert max(steps_saved(text)) > HEALED
    assert most_at_once(text) <= 1
    if seconds > 1:  # a save under way waits for some seconds
        assert "was not saved: " in text
