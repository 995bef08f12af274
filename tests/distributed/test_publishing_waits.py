"""What was trained is published though the store is away when the training ends, and though one rank alone keeps it."""

import json

import pytest

from train_func.storage import open_store

TRAINS = """
import pathlib

def train_func(parameters):
    from tests.distributed import small
    from train_func.worker import Session

    with Session(parameters) as session:
        trainer = small.trainer_of(session, num_rows=40)
        trainer.train()
        THEN
"""
LOSES_ITS_STORE = """if session.rank == 0:
            with open(parameters["trainings"], "a") as trainings:
                trainings.write("trained\\n")
            loop = pathlib.Path(parameters["store"]).with_name("loop")
            loop.symlink_to(parameters["store"])  # the folder does not answer as it should
            loop.replace(parameters["store"])
        session.publish(trainer)"""
WAITS = r"^\[rank 0\] waiting up to \d+ s more for the store, to publish what was trained: "


def result_of(made):
    return json.loads(open_store(made.record.store).get("a-run/result.json").data)


def test_the_rank_waits_and_the_first_attempt_succeeds(job, tmp_path):
    store, trainings = tmp_path / "store", tmp_path / "trainings"
    (tmp_path / "disk").mkdir()
    store.symlink_to("disk")  # one link takes another's place in one step, as no folder can
    named = {"store": str(store), "trainings": str(trainings)}
    made = job(TRAINS.replace("THEN", LOSES_ITS_STORE), workers=2, epochs=1, store=store.as_uri(), parameters=named)
    made.start().pods[0].says(WAITS)
    (tmp_path / "link").symlink_to("disk")
    (tmp_path / "link").replace(store)
    assert made.exit_codes() == [0, 0]
    assert result_of(made)["attempt"] == 1
    assert trainings.read_text().split() == ["trained"]
    assert not list(made.folder.glob("pod-0-*/publication"))


@pytest.mark.parametrize(
    ("keeps", "returned", "files"),
    [
        pytest.param("return {'kept': 1}", {"kept": 1}, set(), marks=pytest.mark.slow),
        ("session.publish(trainer.model)", {}, {"model.safetensors", "config.json"}),
        pytest.param("open('kept.txt', 'w').write('kept')", {}, {"kept.txt"}, marks=pytest.mark.slow),
    ],
)
def test_what_rank_0_alone_keeps_of_a_training_of_two_ranks_is_its_result(job, keeps, returned, files):
    made = job(TRAINS.replace("THEN", f"if session.rank == 0:\n            {keeps}"), ranks=2, epochs=1).start()
    assert made.exit_codes() == [0]
    assert result_of(made)["returned"] == returned
    assert files <= set(result_of(made)["files"])
