"""What was trained is published, though the store is away when the training ends, or a rank is lost then."""

import json
import signal
import time

import pytest

from tests.distributed.pods import Job, Pod
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
            store = pathlib.Path(parameters["store"])
            store.rename(store.with_name("away"))
            store.symlink_to(store)  # a loop: the folder does not answer as it should
        session.publish(trainer)
"""
DIES_WHILE_IT_MEASURES = """
import os, signal

from datasets import Dataset
from datasets.distributed import split_dataset_by_node
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

from train_func.worker import Session, Trainer

victims = []

class Dies(BertForSequenceClassification):
    def forward(self, input_ids, labels, **options):
        if os.environ["RANK"] in victims:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(input_ids=input_ids, labels=labels, **options)

def train_func(parameters):
    sizes = {"vocab_size": 11, "hidden_size": 8, "intermediate_size": 8}
    rows = Dataset.from_list([{"row_id": i, "input_ids": [1, 2, 3], "label": i % 2} for i in range(40)])
    with Session(parameters) as session:
        trainer = Trainer(
            model=Dies(BertConfig(**sizes, num_hidden_layers=1, num_attention_heads=1)),
            args=TrainingArguments(**session.arguments()),
            train_dataset=split_dataset_by_node(session.plan(rows), session.rank, session.world_size),
            eval_dataset=rows,
        )
        trainer.train()
        victims.append(parameters["victim"])
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
SUPERVISOR_WAITS = r"^waiting up to \d+ s more for the store, to publish what was trained: "


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
    return two_workers(TRAINS_AND_PUBLISHES, parameters=named)


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


@pytest.mark.slow
def test_a_stop_leaves_the_grace_period_to_what_is_trained(job):
    job.grace = 40
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
    (rank,) = job.pods[0].ranks()
    rank.kill()
    job.pods[0].says(SUPERVISOR_WAITS)
    job.pods[0].signal(signal.SIGKILL)
    assert job.pods[0].exit_code() == -signal.SIGKILL

    stopped = started_again(job)
    stopped.says("^waiting up to [0-9]+ s more for the store: ")
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


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_no_worker_ends_the_last_attempt_for_good_while_another_publishes_what_it_has_trained(two_workers, victim):
    """A job has failed as soon as one of its workers has left with an exit code that is not tried again."""
    made = two_workers(DIES_WHILE_IT_MEASURES, max_attempts=1, parameters={"victim": str(victim)}).start()
    codes = made.exit_codes()
    assert (codes[0], codes[1] >= exits.FIRST_SIGNAL) == (exits.DONE, True), made.pods[1].output
    assert published(made)["attempt"] == 1
    assert made.end_record(1, 0)["exit_code"] == exits.DONE


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
