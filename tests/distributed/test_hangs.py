"""A rank that gets on no more is noticed, named and started again, whatever it hangs in."""

import re
from datetime import datetime

import pytest

from train_func.storage import open_store
from train_func.wire.result import Result

SOURCE = """
def train_func(parameters):
    import os, signal, time, torch
    from transformers import TrainerCallback
    from tests.distributed import small
    from train_func.worker import Session
    from train_func.worker.rank import marks as progress_mark

    class Hangs(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            print(f"step {state.global_step} is done", flush=True)
            time.sleep(0.05)
            here = os.environ["TRAIN_FUNC_ATTEMPT"], os.environ["RANK"], state.global_step
            if here == ("1", "1", 12):
                print(f"hangs from {time.time()}", flush=True)
                if parameters["how"] == "sleeps":
                    time.sleep(1000)
                if parameters["how"] == "is stopped":
                    os.kill(os.getpid(), signal.SIGSTOP)
            if parameters["how"] == "is blocked" and (here[0], here[2]) == ("1", 12):
                with progress_mark.exchange():  # as all exchanges of a step are: here both ranks only receive
                    torch.distributed.recv(torch.zeros(1), src=1 - int(here[1]))

    with Session(parameters) as session:
        trainer = small.trainer_of(session, Hangs())
        trainer.train()
        session.publish(trainer)
"""
STEPS = 28  # 101 rows in batches of 16, four times


@pytest.fixture
def hanging(job):
    def make(how, **settings):
        fields = {"epochs": 4, "batch_size": 16, "micro_batch_size": 4, "checkpoint_every": 0, "hang_after": 8}
        given = {"environment": {"TRAIN_FUNC_CPUS": "1"}, **fields, **settings}  # threads that share a core wait
        return job(SOURCE, parameters={"how": how}, **given)

    return make


def result(made):
    return Result.read(open_store(made.record.store).get(made.record.keys.result).data, "the result")


@pytest.mark.parametrize(
    ("how", "workers", "ranks"),
    [
        ("sleeps", 2, 1),
        pytest.param("is stopped", 1, 2, marks=pytest.mark.slow),
        pytest.param("sleeps", 1, 2, marks=pytest.mark.slow),
        pytest.param("is stopped", 2, 1, marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_hangs_is_named_with_its_stack_and_the_training_goes_on(hanging, how, workers, ranks):
    made = hanging(how, workers=workers, ranks=ranks).start()
    assert made.exit_codes() == [0] * workers
    end = made.end_record(1, workers - 1)
    assert (end["exit_code"], end["cause"], end["root_cause"]) == (148, "hang", True)
    assert end["step"] in ((12, 13) if how == "is stopped" else (12,))  # for its stack a stopped process is woken
    said = re.match(r"rank 1 hangs: .* for ([0-9.]+) s", end["message"])
    shortest = 6.4 if how == "is stopped" else 8  # a stopped process is judged before those that wait for it
    assert shortest <= float(said[1]) <= 30  # 0.2 more where nothing else wants the processors
    begun = re.search(r"hangs from ([0-9.]+)", made.pods[workers - 1].output)
    assert datetime.fromisoformat(end["ended"]).timestamp() - float(begun[1]) < 60  # with the stacks, by another clock
    logs = [made.log(1, worker) for worker in range(workers)]
    assert all("hread 0x" in log for log in logs)
    assert sorted(re.findall(r"^rank (\d) is in ", "\n".join(logs), re.MULTILINE)) == ["0", "1"]
    assert all(f"[rank {rank} trace] " in "\n".join(logs) for rank in (0, 1))  # and not as what they have printed
    assert not any(re.search(r"\[rank \d\] .*hread 0x", log) for log in logs)
    records = [rank for worker in range(workers) for rank in made.end_record(1, worker)["ranks"]]
    if how == "sleeps":
        assert "in on_step_end" in logs[-1]
        assert (end["hangs"], ["in on_step_end" in rank["stacks"] for rank in records]) == (1, [False, True])
        assert all(made.end_record(1, worker)["follows"] == workers - 1 for worker in range(workers - 1))
    steps = [int(step) for step in re.findall(r"\[rank 0\] step (\d+) is done", made.pods[0].output)]
    assert sorted(set(steps)) == list(range(1, STEPS + 1))
    assert len(steps) < STEPS + 12  # not from the beginning
    assert result(made).attempt == 2


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_ranks_that_all_wait_for_each_other_are_noticed_and_none_is_named(hanging, workers):
    made = hanging("is blocked", workers=workers, ranks=2 // workers).start()
    assert made.exit_codes() == [0] * workers
    ends = [made.end_record(1, worker) for worker in range(workers)]
    assert [end["exit_code"] for end in ends if end["root_cause"]] == [148]
    root = next(end for end in ends if end["root_cause"])
    assert (root["cause"], root["step"]) == ("hang", 12)
    said = re.match(r"no rank .* for ([0-9.]+) s", root["message"])
    assert float(said[1]) <= 30
    logs = "\n".join(made.log(1, worker) for worker in range(workers))
    assert logs.count(" in recv") == 2
    assert result(made).attempt == 2
