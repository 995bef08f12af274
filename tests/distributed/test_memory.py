"""A rank that needs more memory than there is: the next attempt goes on with the same batches in smaller parts."""

import json

import pytest

from tests.distributed.pods import Job
from tests.messages import unnamed
from train_func.storage import open_store

SOURCE = """
def train_func(parameters):
    from datasets.distributed import split_dataset_by_node
    from transformers import TrainerCallback, TrainingArguments
    from tests.distributed import small
    from train_func.worker import Session, Trainer

    with Session(parameters) as session:
        class Grows(TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                too_much = session.numerics.micro_batch_size > parameters.get("fits", 2)
                if too_much and state.global_step == 5 and session.rank == 1:
                    raise MemoryError("there is no room for it")

        plan = split_dataset_by_node(session.plan(small.rows(101)), session.rank, session.world_size)
        arguments = TrainingArguments(**{
            **session.arguments(), "bf16": False, "save_strategy": "steps", "save_steps": 2,
            "logging_strategy": "steps", "logging_steps": 1,
        })
        trainer = Trainer(
            model=small.model(), args=arguments, train_dataset=plan, data_collator=small.collate, callbacks=[Grows()]
        )
        trainer.train()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        session.publish(trainer)
    return {"losses": losses, "rows": [[of.num_rows, of.num_once] for of in trainer.coverage]}
"""


@pytest.fixture
def job(tmp_path):
    jobs = []

    def make(name, **fields):
        given = {"epochs": 2, "batch_size": 16, "micro_batch_size": 4, "max_attempts": 2, **fields}
        jobs.append(Job(tmp_path / name, SOURCE, workers=2, **given))
        return jobs[-1]

    yield make
    for pod in (pod for made in jobs for pod in made.started if pod.process.poll() is None):
        pod.process.kill()
        pod.process.wait()


def result_of(job):
    return json.loads(open_store(job.record.store).get(job.record.keys.result).data)["returned"]


def cut_of(job, attempt):
    setup = json.loads(open_store(job.record.store).get(job.record.keys.attempt(attempt).setup).data)
    return setup["numerics"]["micro_batch_size"], setup["numerics"]["num_micro_batches"]


def test_the_next_attempt_cuts_the_same_batches_finer_and_goes_on(job):
    whole = job("whole", parameters={"fits": 4}).start()
    assert whole.exit_codes() == [0, 0]
    made = job("grows").start()
    assert made.exit_codes() == [0, 0]
    assert (made.end_record(1, 1)["exit_code"], made.end_record(1, 1)["cause"]) == (137, "memory")
    assert [cut_of(made, attempt) for attempt in (1, 2)] == [(4, 4), (2, 8)]
    expected, found = result_of(whole), result_of(made)
    assert found["rows"] == expected["rows"] == [[101, 101]] * 2
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-4)


def test_where_nothing_can_be_cut_finer_it_is_final_and_says_what_helps(job):
    made = job("single", micro_batch_size=1, parameters={"fits": 0}).start()
    assert made.exit_codes() == [70, 70]
    record = made.end_record(1, 1)
    assert record["cause"] == "memory"
    assert unnamed(record["message"], "rank 1", "MemoryError") == []
