"""A store that is away when a training ends costs time, and no second training."""

import json
import signal
import time

import pytest

from tests.distributed.pods import Job, Pod
from train_func.storage import open_store

TRAINS_AND_PUBLISHES = """
import pathlib

def train_func(parameters):
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    from train_func.worker import Session

    sizes = {"vocab_size": 11, "hidden_size": 8, "intermediate_size": 8}
    with Session(parameters) as session:
        trainer = Trainer(
            model=BertForSequenceClassification(
                BertConfig(**sizes, num_hidden_layers=1, num_attention_heads=1)
            ),
            args=TrainingArguments(**session.arguments()),
            train_dataset=[{"input_ids": [1, 2, 3], "labels": i % 2} for i in range(7)],
        )
        trainer.train()
        if session.rank == 0:
            with open(parameters["trainings"], "a") as trainings:
                trainings.write("trained\\n")
            store = pathlib.Path(parameters["store"])
            store.rename(store.with_name("away"))
            store.symlink_to(store)  # a loop: the folder does not answer as it should
        session.publish(trainer)
"""
WAITS = r"^\[rank 0\] waiting up to \d+ s more for the store, to publish what was trained: "
SUPERVISOR_WAITS = r"^waiting up to \d+ s more for the store, to publish what was trained: "


@pytest.fixture
def job(tmp_path):
    made = Job(
        tmp_path,
        TRAINS_AND_PUBLISHES,
        workers=2,
        epochs=1,
        parameters={"store": str(tmp_path / "store"), "trainings": str(tmp_path / "trainings")},
    )
    yield made
    for pod in made.started:
        if pod.process.poll() is None:
            pod.process.kill()
            pod.process.wait()


def comes_back(job):
    (job.folder / "store").unlink()
    (job.folder / "away").rename(job.folder / "store")


def started_again(job):
    """In the same pod: its files are still there."""
    job.started.append(Pod(job._environment(0, job.pods[0].work), job.pods[0].work))
    return job.started[-1]


def published(job):
    return json.loads(open_store(job.record.store).get("a-run/model/manifest.json").data)


def trainings(job):
    return (job.folder / "trainings").read_text().split()


def test_the_rank_waits_and_the_first_attempt_succeeds(job):
    job.start()
    job.pods[0].says(WAITS)
    comes_back(job)
    assert job.exit_codes() == [0, 0]
    assert published(job)["attempt"] == 1
    assert trainings(job) == ["trained"]
    assert not list(job.folder.glob("pod-0-*/publication"))


def test_a_stop_leaves_the_grace_period_to_what_is_trained(job):
    job.grace = 120
    job.start()
    job.pods[0].says(WAITS)
    job.pods[0].signal(signal.SIGTERM)
    job.pods[0].says(SUPERVISOR_WAITS)
    comes_back(job)
    assert job.pods[0].exit_code() == 0
    assert published(job)["attempt"] == 1
    assert job.end_record(1, 0)["exit_code"] == 0


def test_what_is_left_of_the_pod_publishes_when_the_rank_or_the_supervisor_dies_while_it_waits(job):
    job.start()
    job.pods[0].says(WAITS)
    (rank,) = (process for process in job.pods[0].descendants() if "rank" in process.cmdline())
    rank.kill()
    job.pods[0].says(SUPERVISOR_WAITS)
    job.pods[0].signal(signal.SIGKILL)
    assert job.pods[0].exit_code() == -signal.SIGKILL

    stopped = started_again(job)
    stopped.says("^the store is away")
    stopped.signal(signal.SIGTERM)
    stopped.says(SUPERVISOR_WAITS)
    start = time.monotonic()
    assert stopped.exit_code() == 143
    assert time.monotonic() - start < job.grace

    comes_back(job)
    assert started_again(job).exit_code() == 0
    assert published(job)["attempt"] == 1
    assert job.end_record(1, 0)["exit_code"] == 0
    assert trainings(job) == ["trained"]
