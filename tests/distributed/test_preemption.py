"""A signal to stop: all workers save at the same step and leave within the grace period, and lose no step."""

import json
import re
import signal
import time

import pytest

from tests.distributed.pods import Job
from train_func.storage import open_store
from train_func.worker.checkpoint.manifest import Pointer

GRACE = 30  # seconds
STEPS = 28  # 101 rows in batches of 16, four times
SOURCE = """
def train_func(parameters):
    from datasets.distributed import split_dataset_by_node
    from transformers import TrainerCallback, TrainingArguments
    from tests.distributed import small
    from train_func.worker import Session, Trainer

    class Tells(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            print(f"step {state.global_step} is done", flush=True)

    with Session(parameters) as session:
        plan = split_dataset_by_node(session.plan(small.rows(101)), session.rank, session.world_size)
        arguments = TrainingArguments(**{**session.arguments(), "bf16": False})
        collate = small.collate
        trainer = Trainer(
            model=small.model(0.1), args=arguments, train_dataset=plan, data_collator=collate, callbacks=[Tells()]
        )
        trainer.train()
        session.publish(trainer)
"""


@pytest.fixture
def job(tmp_path):
    jobs = []

    def make(**settings):
        fields = {"epochs": 4, "batch_size": 16, "micro_batch_size": 4, "checkpoint_every": 3600}
        jobs.append(Job(tmp_path / str(len(jobs)), SOURCE, workers=2, grace=GRACE, **{**fields, **settings}))
        return jobs[-1]

    yield make
    for pod in (pod for made in jobs for pod in made.started if pod.process.poll() is None):
        pod.process.kill()
        pod.process.wait()


def steps_of(pod):
    return [int(step) for step in re.findall(r"step (\d+) is done", pod.output)]


def newest_of(job):
    data = open_store(job.record.store).get(f"{job.record.keys.checkpoints_of(0)}/newest.json").data
    return Pointer.from_json(data, "").kept[0].step


@pytest.mark.slow
def test_signals_that_are_sent_again_and_again_cost_neither_the_save_nor_a_step(job):
    slow = {"point": "checkpoint file written", "attempt": 1, "seconds": 3}
    made = job(environment={"TRAIN_FUNC_FAILPOINT": json.dumps(slow)}).start()
    made.pods[1].says(r"step 5 is done")
    begun = time.monotonic()
    while any(pod.process.poll() is None for pod in made.pods.values()):
        for pod in made.pods.values():
            pod.signal(signal.SIGTERM)
        time.sleep(0.1)
    assert made.exit_codes() == [143, 143]
    assert time.monotonic() - begun >= 3
    done, newest = [steps_of(pod) for pod in made.started], newest_of(made)
    assert done[0] == done[1] == list(range(1, newest + 1))
    made.start()
    assert made.exit_codes() == [0, 0]
    for pod in made.started[2:]:
        assert steps_of(pod) == list(range(newest + 1, STEPS + 1))
    assert open_store(made.record.store).list(f"{made.record.keys.checkpoints}/") == []


def test_a_save_that_takes_8_seconds_is_completed_within_the_grace_period(job):
    slow = {"point": "checkpoint file written", "seconds": 8}
    made = job(environment={"TRAIN_FUNC_FAILPOINT": json.dumps(slow)}).start()
    made.pods[1].says(r"step 5 is done")
    begun = time.monotonic()
    made.pods[1].signal(signal.SIGTERM)
    codes = made.exit_codes()
    assert codes[1] == 143 and codes[0] in (143, 145)
    assert 8 <= time.monotonic() - begun < GRACE
    done = [steps_of(pod) for pod in made.started]
    assert done[0] == done[1] == list(range(1, newest_of(made) + 1))
