"""A rank that needs more memory than there is ends the job; submitted again, it goes on with smaller micro-batches."""

import contextlib
import json
import uuid
from pathlib import Path

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
                    hoard = []
                    while parameters.get("hoards"):  # until the kernel kills it
                        hoard.append(b"x" * 2**25)
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

    def make(run, **fields):
        given = {"epochs": 2, "batch_size": 16, "micro_batch_size": 4, **fields}
        folder = tmp_path / f"{len(jobs)}"
        jobs.append(Job(folder, SOURCE, workers=2, store=(tmp_path / run).as_uri(), **given))
        return jobs[-1]

    yield make
    for pod in (pod for made in jobs for pod in made.started if pod.process.poll() is None):
        pod.process.kill()
        pod.process.wait()


@pytest.fixture
def memory_group():
    """A folder of the kernel's: processes whose ids are written to its ``cgroup.procs`` have 1.5 GB together."""
    own = dict(line.split(":")[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    kernel = Path("/sys/fs/cgroup")
    version_1 = [kernel / "memory" / own["memory"].strip("/")] if "memory" in own else []
    *parents, last = [*version_1, kernel / own.get("", "").strip("/")]
    group = (parents or [last])[0] / f"train-func-{uuid.uuid4().hex}"
    names = ("memory.limit_in_bytes", "memory.swappiness") if parents else ("memory.max", "memory.swap.max")
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no memory group can be made here: {error}")
    try:
        try:
            (group / names[0]).write_text(str(1_500_000_000))
        except OSError as error:
            pytest.skip(f"no memory group can be limited here: {error}")
        with contextlib.suppress(OSError):  # a machine without swap
            (group / names[1]).write_text("0")
        yield group
    finally:
        group.rmdir()


def result_of(job):
    return json.loads(open_store(job.record.store).get(job.record.keys.result).data)["returned"]


def cut_of(job, attempt):
    setup = json.loads(open_store(job.record.store).get(job.record.keys.attempt(attempt).setup).data)
    return setup["numerics"]["micro_batch_size"], setup["numerics"]["num_micro_batches"]


@pytest.mark.slow
def test_a_run_that_ran_out_of_memory_goes_on_with_the_same_batches_cut_finer(job):
    whole = job("whole", parameters={"fits": 4}).start()
    assert whole.exit_codes() == [0, 0]
    made = job("grows").start()
    assert made.exit_codes() == [70, 70]
    end = made.end_record(1, 1)
    assert (end["exit_code"], end["cause"]) == (70, "memory")
    assert unnamed(end["message"], "rank 1", "MemoryError") == []
    again = job("grows", micro_batch_size=2).start()
    assert again.exit_codes() == [0, 0]
    assert [cut_of(again, attempt) for attempt in (1, 2)] == [(4, 4), (2, 8)]
    expected, found = result_of(whole), result_of(again)
    assert found["rows"] == expected["rows"] == [[101, 101]] * 2
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-4)


@pytest.mark.slow
def test_a_rank_that_the_kernel_has_killed_for_memory_ends_the_job_with_what_helps(job, memory_group):
    made = job("killed", parameters={"hoards": True}).start()
    (memory_group / "cgroup.procs").write_text(str(made.pods[1].process.pid))
    assert made.exit_codes() == [70, 70]
    record = made.end_record(1, 1)
    assert (record["exit_code"], record["cause"], record["ranks"][0]["exit_code"]) == (70, "memory", -9)
    assert unnamed(record["message"], "rank 1", "memory=", "micro_batch_size") == []
