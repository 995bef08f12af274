"""What was trained is published though the store is away when the training ends."""

import json

import pytest

from tests.distributed.pods import Job
from train_func import exits
from train_func.storage import open_store

TRAINS_AND_PUBLISHES = """
import pathlib

def train_func(parameters):
    from datasets import Dataset
    from datasets.distributed import split_dataset_by_node
    from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

    from train_func.worker import Session, Trainer

    sizes = {"vocab_size": 11, "hidden_size": 8, "intermediate_size": 8}
    rows = Dataset.from_list([{"input_ids": [1, 2, 3], "label": i % 2} for i in range(7)])
    with Session(parameters) as session:
        trainer = Trainer(
            model=BertForSequenceClassification(
                BertConfig(**sizes, num_hidden_layers=1, num_attention_heads=1)
            ),
            args=TrainingArguments(**session.arguments()),
            train_dataset=split_dataset_by_node(session.plan(rows), session.rank, session.world_size),
        )
        trainer.train()
        if session.rank == 0:
            with open(parameters["trainings"], "a") as trainings:
                trainings.write("trained\\n")
            loop = pathlib.Path(parameters["store"]).with_name("loop")
            loop.symlink_to(parameters["store"])  # the folder does not answer as it should
            loop.replace(parameters["store"])
        session.publish(trainer)
"""
KEEPS = """
from datasets import Dataset
from datasets.distributed import split_dataset_by_node
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

from train_func.worker import Session, Trainer

def train_func(parameters):
    sizes = {"vocab_size": 11, "hidden_size": 8, "intermediate_size": 8}
    rows = Dataset.from_list([{"row_id": i, "input_ids": [1, 2, 3], "label": i % 2} for i in range(40)])
    with Session(parameters) as session:
        model = BertForSequenceClassification(BertConfig(**sizes, num_hidden_layers=1, num_attention_heads=1))
        trainer = Trainer(
            model=model,
            args=TrainingArguments(**session.arguments()),
            train_dataset=split_dataset_by_node(session.plan(rows), session.rank, session.world_size),
        )
        trainer.train()
        if session.rank == 0:
            KEEPS
"""
WAITS = r"^\[rank 0\] waiting up to \d+ s more for the store, to publish what was trained: "


@pytest.fixture
def two_workers(tmp_path):
    jobs = []

    def make(source, **fields):
        jobs.append(Job(tmp_path, source, workers=2, epochs=1, **fields))
        return jobs[-1]

    yield make
    for pod in (pod for made in jobs for pod in made.started):
        if pod.process.poll() is None:
            pod.process.kill()
            pod.process.wait()


@pytest.fixture
def job(two_workers, tmp_path):
    named = {"store": str(tmp_path / "store"), "trainings": str(tmp_path / "trainings")}
    (tmp_path / "disk").mkdir()
    (tmp_path / "store").symlink_to("disk")  # one link takes another's place in one step, as no folder can
    return two_workers(TRAINS_AND_PUBLISHES, parameters=named)


def comes_back(job):
    (job.folder / "link").symlink_to("disk")
    (job.folder / "link").replace(job.folder / "store")


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


@pytest.mark.parametrize(
    ("keeps", "returned", "files"),
    [
        pytest.param("return {'kept': 1}", {"kept": 1}, set(), marks=pytest.mark.slow),
        ("session.publish(model)", {}, {"model.safetensors", "config.json"}),
        pytest.param("open('kept.txt', 'w').write('kept')", {}, {"kept.txt"}, marks=pytest.mark.slow),
    ],
)
def test_what_rank_0_alone_keeps_of_a_training_of_two_ranks_is_its_result(two_workers, keeps, returned, files):
    made = two_workers(KEEPS.replace("KEEPS", keeps)).start()
    assert made.exit_codes() == [0, 0]
    result = json.loads(open_store(made.record.store).get("a-run/result.json").data)
    assert result["returned"] == returned
    assert files <= set(result["files"])


@pytest.mark.slow
def test_a_training_of_two_ranks_of_which_rank_0_keeps_nothing_fails(two_workers):
    made = two_workers(KEEPS.replace("KEEPS", "pass")).start()
    assert made.pods[0].exit_code() == exits.CODE
