"""A rank that needs more memory than there is ends the job; submitted again, it goes on with smaller micro-batches."""

import json

import pytest

from tests.messages import unnamed
from train_func.storage import open_store

SOURCE = """
def train_func(parameters):
    from transformers import TrainerCallback
    from tests.distributed import small
    from train_func.worker import Session

    with Session(parameters) as session:
        class Grows(TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                too_much = session.numerics.micro_batch_size > parameters.get("fits", 2)
                if too_much and state.global_step == 5 and session.rank == 1:
                    raise MemoryError("there is no room for it")

        saves = {"save_strategy": "steps", "save_steps": 2, "logging_strategy": "steps", "logging_steps": 1}
        trainer = small.trainer_of(session, Grows(), **saves)
        trainer.train()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        session.publish(trainer)
    return {"losses": losses, "rows": [[of.num_rows, of.num_once] for of in trainer.coverage]}
"""


@pytest.fixture
def in_store(job, tmp_path):
    def make(store, **fields):
        given = {"epochs": 2, "batch_size": 16, "micro_batch_size": 4, **fields}
        return job(SOURCE, workers=2, store=(tmp_path / store).as_uri(), **given)

    return make


def result_of(job):
    return json.loads(open_store(job.record.store).get(job.record.keys.result).data)["returned"]


def micro_batch_size_of(job, attempt):
    setup = json.loads(open_store(job.record.store).get(job.record.keys.attempt(attempt).setup).data)
    return setup["numerics"]["micro_batch_size"]


@pytest.mark.slow
def test_a_run_that_ran_out_of_memory_goes_on_with_the_same_batches_cut_finer(in_store):
    whole = in_store("whole", parameters={"fits": 4}).start()
    assert whole.exit_codes() == [0, 0]
    made = in_store("grows").start()
    assert made.exit_codes() == [70, 70]
    end = made.end_record(1, 1)
    assert (end["exit_code"], end["cause"]) == (70, "memory")
    assert unnamed(end["message"], "rank 1", "MemoryError") == []
    again = in_store("grows", micro_batch_size=2).start()
    assert again.exit_codes() == [0, 0]
    assert [micro_batch_size_of(again, attempt) for attempt in (1, 2)] == [4, 2]
    expected, found = result_of(whole), result_of(again)
    assert found["rows"] == expected["rows"] == [[101, 101]] * 2
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-4)
